// Package texts changes the texts in objects of any kind, for tools and tests.
package texts

// Each replaces every string in a value by the result of change. Keys stay.
func Each(value any, change func(string) string) any {
	switch typed := value.(type) {
	case string:
		return change(typed)
	case []any:
		for i := range typed {
			typed[i] = Each(typed[i], change)
		}
	case map[string]any:
		for key := range typed {
			typed[key] = Each(typed[key], change)
		}
	}
	return value
}
