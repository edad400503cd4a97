package manifests

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

const (
	one  = "{apiVersion: v1, kind: ConfigMap, metadata: {name: one, labels: {a: b}}, data: {number: 9007199254740993}}"
	two  = "{apiVersion: v1, kind: ConfigMap, metadata: {name: two, namespace: team}}"
	list = "{apiVersion: v1, kind: List, items: [%s]}"
)

// found names each object with its place, and each problem.
func found(paths []string, stdin io.Reader) (objects, problems []string) {
	all, failed := Read(paths, stdin)
	for _, object := range all {
		objects = append(objects, fmt.Sprintf("%s %d %s/%s", filepath.Base(object.File), object.Document, object.Kind, object.Name))
	}
	for _, problem := range failed {
		problems = append(problems, strings.TrimPrefix(problem.Error(), filepath.Dir(problem.File)+"/"))
	}
	return objects, problems
}

func TestRead(t *testing.T) {
	const oneInFirst, twoInFirst, twoInSecond = "- 1 ConfigMap/one", "- 1 ConfigMap/two", "- 2 ConfigMap/two"
	for name, test := range map[string]struct {
		content           string
		objects, problems []string
	}{
		"nothing":                        {},
		"blanks, comments, separators":   {content: "\n---\n# nothing\n---\n\n---\nnull\n"},
		"a document":                     {content: one, objects: []string{oneInFirst}},
		"a separator before and behind":  {content: "---\n" + one + "\n---\n", objects: []string{oneInFirst}},
		"two documents":                  {content: one + "\n---\n" + two, objects: []string{oneInFirst, twoInSecond}},
		"a comment counts as a document": {content: "# nothing\n--- # more\n" + two, objects: []string{twoInSecond}},
		"JSON":                           {content: `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}`, objects: []string{oneInFirst}},
		"a List":                         {content: fmt.Sprintf(list, one+", "+two), objects: []string{oneInFirst, twoInFirst}},
		"an empty List":                  {content: fmt.Sprintf(list, "")},
		"a List with a hole":             {content: fmt.Sprintf(list, "null, "+one), objects: []string{oneInFirst}},
		"a List in a List":               {content: fmt.Sprintf(list, fmt.Sprintf(list, one)+", "+two), objects: []string{oneInFirst, twoInFirst}},
		"a List of another API group":    {content: "{apiVersion: example.com/v1, kind: List, metadata: {name: one}, items: [" + two + "]}", objects: []string{"- 1 List/one"}},
		"no kind":                        {content: "a: b", objects: []string{"- 1 /"}},
		"no YAML":                        {content: "a: b: c\n---\n" + two, objects: []string{twoInSecond}, problems: []string{"-: document 1: yaml: mapping values are not allowed in this context"}},
		"a key twice":                    {content: "a: 1\na: 2", problems: []string{"-: document 1: yaml: unmarshal errors:\n  line 2: key \"a\" already set in map"}},
		"no separator":                   {content: one + "\n---" + two, problems: []string{"-: document 1: invalid Yaml document separator: " + two}},
		"no object":                      {content: "[" + one + "]\n---\ntext", problems: []string{"-: document 1: is not a Kubernetes object", "-: document 2: is not a Kubernetes object"}},
		"no metadata":                    {content: "metadata: {labels: {a: 1}}", problems: []string{"-: document 1: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"}},
		"no items":                       {content: "{apiVersion: v1, kind: List, items: {}}", problems: []string{"-: document 1: json: cannot unmarshal object into Go struct field .items of type []json.RawMessage"}},
		"items that are not objects":     {content: fmt.Sprintf(list, "a, "+two+", "+fmt.Sprintf(list, one+", 1")), objects: []string{twoInFirst, oneInFirst}, problems: []string{"-: document 1: item 1: is not a Kubernetes object\nitem 3: item 2: is not a Kubernetes object"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, problems := found([]string{Stdin}, strings.NewReader(test.content))
			if diff := cmp.Diff(test.objects, objects); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	first := filepath.Join(dir, "first.yaml")
	if err := os.WriteFile(first, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, problems := found([]string{filepath.Join(dir, "none"), Stdin, dir, first}, strings.NewReader(two))
	if diff := cmp.Diff([]string{"- 1 ConfigMap/two", "first.yaml 1 ConfigMap/one"}, objects); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"none: no such file or directory", filepath.Base(dir) + ": is a directory"}, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if _, problems := Read([]string{filepath.Join(dir, "none")}, nil); !errors.Is(problems[0], os.ErrNotExist) {
		t.Errorf("the problem is %v", problems[0])
	}
	if _, problems := found([]string{Stdin}, iotest.ErrReader(errors.New("broken"))); !cmp.Equal(problems, []string{"-: broken"}) {
		t.Errorf("problems: %v", problems)
	}
}

func TestObject(t *testing.T) {
	objects, problems := Read([]string{Stdin}, strings.NewReader(one+"\n---\n{kind: Secret, metadata: {generateName: two-}}"))
	if len(objects) != 2 || problems != nil {
		t.Fatal(objects, problems)
	}
	if got := objects[0]; got.APIVersion != "v1" || got.Labels["a"] != "b" || !strings.Contains(string(got.Raw), `"number":9007199254740993`) {
		t.Errorf("%+v, %s", got, got.Raw)
	}
	cause := errors.New("is wrong")
	for i, want := range []string{"-: document 1, ConfigMap one: is wrong", "-: document 2, Secret two-: is wrong"} {
		if err := objects[i].Wrap(cause); err.Error() != want || !errors.Is(err, cause) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
