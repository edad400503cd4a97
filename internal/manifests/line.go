package manifests

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// steps are the parts of a path such as spec.stages[0].name or metadata.labels[a.b/c].
var steps = regexp.MustCompile(`\[[^]]*\]|[^.[]+`)

// LineOf returns the line in the file at which a field begins. If the object does not have the field, that is the line
// of the deepest field above it that it has.
func (o *Object) LineOf(path string) int {
	var document yaml.Node
	if yaml.Unmarshal(o.document, &document) != nil || len(document.Content) == 0 {
		return o.line
	}
	node := document.Content[0]
	line := node.Line
	for _, step := range steps.FindAllString(o.item+"."+path, -1) {
		next, at := child(node, strings.Trim(step, "[]"))
		if next == nil {
			break
		}
		node, line = next, at
	}
	return o.line + line - 1
}

// child returns a field of a mapping or an item of a sequence, and the line at which it begins.
func child(node *yaml.Node, name string) (*yaml.Node, int) {
	if index, err := strconv.Atoi(name); err == nil && node.Kind == yaml.SequenceNode && index >= 0 && index < len(node.Content) {
		return node.Content[index], node.Content[index].Line
	}
	for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return node.Content[i+1], node.Content[i].Line
		}
	}
	return nil, 0
}

// firstLine returns the line at which a document begins that is the last one in the content read so far.
func firstLine(read, document []byte) int {
	end := bytes.Count(bytes.TrimSuffix(read, []byte("\n")), []byte("\n")) + 1
	if last := read[bytes.LastIndexByte(bytes.TrimSuffix(read, []byte("\n")), '\n')+1:]; bytes.HasPrefix(last, []byte("---")) {
		end-- // The separator is read, too.
	}
	return end - bytes.Count(document, []byte("\n")) + 1
}
