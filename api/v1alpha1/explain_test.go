package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// kubectl explain shows the comment of a field, which begins with its JSON name and says its default.
func TestExplain(t *testing.T) {
	files, err := filepath.Glob("*_types.go")
	if err != nil {
		t.Fatal(err)
	}
	fields := 0
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			field, ok := node.(*ast.Field)
			if !ok || field.Tag == nil || len(field.Names) == 0 {
				return true
			}
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			json, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			if json == "items" { // A list's own field, as in every kind of Kubernetes.
				return true
			}
			fields++
			var comment, markers []string
			for _, line := range strings.Split(field.Doc.Text(), "\n") {
				if strings.HasPrefix(line, "+") {
					markers = append(markers, line)
				} else {
					comment = append(comment, line)
				}
			}
			text := strings.Join(comment, " ")
			if !strings.HasPrefix(text, json+" ") {
				t.Errorf("%s: the text of %s does not begin with its name: %s", name, json, text)
			}
			for _, marker := range markers {
				if value, is := strings.CutPrefix(marker, "+kubebuilder:default="); is && value != "{}" && !strings.Contains(text, "default is "+value) {
					t.Errorf("%s: the text of %s does not say that the default is %s: %s", name, json, value, text)
				}
			}
			return true
		})
	}
	if fields < 100 {
		t.Errorf("only %d fields were looked at", fields)
	}
}
