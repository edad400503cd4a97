package plan

import (
	"go.yaml.in/yaml/v3"
)

// maxExpanded is how large values may be, in bytes or so, once every alias in them stands for
// what it refers to: reading them does that.
const maxExpanded = 2 * MaxValues

// isBomb reports whether values become too large when their aliases are resolved.
func isBomb(values []byte) bool {
	var document yaml.Node
	if yaml.Unmarshal(values, &document) != nil {
		return false // Whoever reads them says so.
	}
	return expanded(&document, map[*yaml.Node]int{}) > maxExpanded
}

// expanded returns the size of a node with its aliases resolved, or something beyond what is
// allowed.
func expanded(node *yaml.Node, known map[*yaml.Node]int) int {
	if size, found := known[node]; found {
		return size
	}
	known[node] = maxExpanded + 1 // In case that it holds itself.
	size := len(node.Value) + 1
	if node.Kind == yaml.AliasNode {
		size = expanded(node.Alias, known)
	}
	for _, child := range node.Content {
		if size += expanded(child, known); size > maxExpanded {
			break
		}
	}
	known[node] = size
	return size
}
