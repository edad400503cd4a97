package desired

import (
	"encoding/json"
	"fmt"
	"math"
)

// maxExactInteger is the limit up to which float64 holds every integer.
const maxExactInteger = 1 << 53

// canonical returns what encoding/json makes of a value that has been through JSON once: keys are sorted, an int64 and the
// float64 that a cache decodes it to are the same number, and -0 is 0. Template values are hashed for every event of a Fleet
// Cluster, and going through JSON twice was a third of an import: nearly all values are canonical as they are.
func canonical(value any) []byte {
	if isCanonical(value) {
		return encode(value)
	}
	var decoded any
	if err := json.Unmarshal(encode(value), &decoded); err != nil {
		panic(fmt.Sprintf("hashing %T: %v", value, err))
	}
	return encode(withoutNegativeZero(decoded))
}

// isCanonical reports whether a value stays the same if it goes through JSON.
func isCanonical(value any) bool {
	switch typed := value.(type) {
	case nil, bool, string:
		return true
	case int64:
		return -maxExactInteger <= typed && typed <= maxExactInteger
	case float64:
		return typed != 0 || !math.Signbit(typed)
	case map[string]any:
		for _, child := range typed {
			if !isCanonical(child) {
				return false
			}
		}
		return true
	case []any:
		for _, child := range typed {
			if !isCanonical(child) {
				return false
			}
		}
		return true
	}
	return false
}

// withoutNegativeZero replaces -0 in decoded JSON, in place: the API server decodes it as the integer 0.
func withoutNegativeZero(value any) any {
	switch typed := value.(type) {
	case float64:
		return typed + 0
	case map[string]any:
		for key, child := range typed {
			typed[key] = withoutNegativeZero(child)
		}
	case []any:
		for i, child := range typed {
			typed[i] = withoutNegativeZero(child)
		}
	}
	return value
}

func encode(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil { // Only values that came from JSON are hashed.
		panic(fmt.Sprintf("hashing %T: %v", value, err))
	}
	return data
}
