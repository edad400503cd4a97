package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/program"
)

var update = flag.Bool("update", false, "write the golden files")

// recorded returns objects as kubectl get -o yaml writes them.
func recorded(t *testing.T, objects []client.Object) []byte {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	items := []any{}
	for _, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		kind, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			t.Fatal(err)
		}
		fields["apiVersion"], fields["kind"] = kind.GroupVersion().String(), kind.Kind
		items = append(items, fields)
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	// JSON may hold this character as it is, and YAML, as which it is read here, may not.
	text, err := yaml.JSONToYAML(bytes.ReplaceAll(list, []byte("\u009b"), []byte(`\u009b`)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// golden compares text with a file, or writes the file.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	path = filepath.Join("testdata", path)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; written anew by go test -update):\n%s", path, diff)
	}
}

// muster runs a command and returns what it prints and its error.
func muster(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err := execute(t.Context(), args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	if errOut.Len() > 0 {
		t.Errorf("%v: standard error: %s", args, &errOut)
	}
	return out.String(), err
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := muster(t, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// treeOutputs are all outputs of tree, by the extension of their files, and traceOutputs the
// formats of trace.
var (
	treeOutputs = map[string][]string{
		"tree": {"tree", "--bundles"}, "wide": {"tree", "-o", "wide"}, "problems": {"tree", "--problems"}, "json": {"tree", "-o", "json"},
		"yaml": {"tree", "-o", "yaml"}, "dot": {"tree", "-o", "dot"}, "mermaid": {"tree", "-o", "mermaid"}, "svg": {"tree", "--bundles", "-o", "svg"},
	}
	traceOutputs = []string{"tree", "wide", "json", "yaml", "dot", "mermaid", "svg"}
)

// TestStates holds what is shown of each recorded state, in each format.
func TestStates(t *testing.T) {
	for _, state := range states() {
		t.Run(state.name, func(t *testing.T) {
			w := newWorld()
			state.make(w)
			golden(t, "states/"+state.name+".yaml", recorded(t, w.objects))
			file := filepath.Join("testdata", "states", state.name+".yaml")

			tree := must(t, "tree", "--bundles", "-f", file)
			for extension, args := range treeOutputs {
				golden(t, "tree/"+state.name+"."+extension, []byte(must(t, append(args, "-f", file)...)))
			}
			for _, format := range traceOutputs {
				golden(t, "trace/"+state.name+"."+format, []byte(must(t, "trace", state.trace[0], state.trace[1], "-o", format, "-f", file)))
			}
			traced := struct{ Verdict, FailedStep string }{}
			if err := json.Unmarshal([]byte(must(t, "trace", state.trace[0], state.trace[1], "-o", "json", "-f", file)), &traced); err != nil {
				t.Fatal(err)
			}
			if traced.Verdict != state.verdict || traced.FailedStep != state.step {
				t.Errorf("trace: got %s, failed at %q; want %s, failed at %q", traced.Verdict, traced.FailedStep, state.verdict, state.step)
			}
			isShowable(t, tree)
		})
	}
}

// isShowable fails for text that a terminal would take for more than text.
func isShowable(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			t.Fatalf("%U is printed as it is in:\n%q", r, text)
		}
	}
}
