package manifests

import (
	"strings"
	"testing"
)

// TestLineOf compares lines with those that an editor shows, after separators, comments and documents that cannot be
// read, and in Lists and JSON.
func TestLineOf(t *testing.T) {
	const file = `---
# first
---
kind: A
spec:
  stages:
  - name: one
  - {name: two,
     percent: 3}
  labels:
    a.b/c: d
--- # more
no: YAML: here
---

kind: List
apiVersion: v1
items:
- kind: B
  spec: {x: 1}
- kind: List
  apiVersion: v1
  items:
  - kind: C
---
{"kind": "D",
  "spec": {}}`
	for _, ending := range []string{"", "\n", "\n---\n"} {
		for _, newline := range []string{"\n", "\r\n"} {
			objects, problems := Read([]string{Stdin}, strings.NewReader(strings.ReplaceAll(file+ending, "\n", newline)))
			if len(objects) != 4 || len(problems) != 1 || problems[0].Line != 13 {
				t.Fatalf("%d objects, problems %v", len(objects), problems)
			}
			for _, test := range []struct {
				object int
				path   string
				want   int
			}{
				{0, "", 4}, {0, "kind", 4}, {0, "spec", 5}, {0, "spec.stages[0]", 7}, {0, "spec.stages[1].percent", 9}, {0, "spec.stages[2].name", 6}, {0, "spec.labels[a.b/c]", 11}, {0, "spec.none.none", 5},
				{1, "", 19}, {1, "spec.x", 20}, {2, "", 24}, {2, "kind", 24}, {3, "", 26}, {3, "spec", 27},
			} {
				if got := objects[test.object].LineOf(test.path); got != test.want {
					t.Errorf("ending %q, newline %q: %s of %s: line %d, want %d", ending, newline, test.path, objects[test.object].Kind, got, test.want)
				}
			}
		}
	}
}
