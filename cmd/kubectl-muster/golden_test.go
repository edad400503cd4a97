package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	// JSON may contain this character unescaped. YAML, as which the file is read here, may not.
	text, err := yaml.JSONToYAML(bytes.ReplaceAll(list, []byte("\u009b"), []byte(`\u009b`)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// archive is a golden file: several outputs, in the format of golang.org/x/tools/txtar.
type archive struct{ text bytes.Buffer }

func (a *archive) add(name, content string) {
	fmt.Fprintf(&a.text, "-- %s --\n%s", name, content)
	if !strings.HasSuffix(content, "\n") {
		a.text.WriteByte('\n')
	}
}

// golden compares the archive with testdata/NAME.txtar, or writes that.
func (a *archive) golden(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txtar")
	if *update {
		if err := os.WriteFile(path, a.text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), a.text.String()); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", path, diff)
	}
}

// stateFile writes the objects of a state to a file, and returns its path.
func stateFile(t *testing.T, name string) string {
	t.Helper()
	all := states()
	w := newWorld()
	all[slices.IndexFunc(all, func(s state) bool { return s.name == name })].make(w)
	file := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(file, recorded(t, w.objects), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// fed runs a command with a standard input, and returns its output and its error.
func fed(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err = execute(t.Context(), args, genericiooptions.IOStreams{In: strings.NewReader(stdin), Out: &out, ErrOut: &errOut})
	return out.String(), errOut.String(), err
}

// muster runs a command that prints nothing to standard error.
func muster(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, errOut, err := fed(t, "", args...)
	if errOut != "" {
		t.Errorf("%v: standard error: %s", args, errOut)
	}
	return out, err
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := muster(t, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// formats are the outputs in the archive of every state. The archives of the states in thorough also have the
// other outputs.
var (
	formats  = []string{"tree", "json"}
	others   = []string{"wide", "yaml", "mermaid"}
	thorough = []string{"blocked", "bundle-failing", "deselected", "hostile", "same-name"}
)

// addOutputs adds the outputs of tree and trace in these formats.
func (a *archive) addOutputs(run func(args ...string) string, traced [2]string, formats []string) {
	for _, format := range formats {
		tree := []string{"tree", "-o", format}
		if format == "tree" {
			tree = append(tree, "--bundles")
		}
		a.add("tree."+format, run(tree...))
		a.add("trace."+format, run("trace", traced[0], traced[1], "-o", format))
	}
}

// TestStates compares the output for each recorded state.
func TestStates(t *testing.T) {
	for _, state := range states() {
		t.Run(state.name, func(t *testing.T) {
			file := stateFile(t, state.name)
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) string { return must(t, append(args, "-f", file)...) }
			var a archive
			a.add("state.yaml", string(content))
			a.addOutputs(run, state.trace, formats)
			if slices.Contains(thorough, state.name) {
				a.addOutputs(run, state.trace, others)
				a.add("tree.problems", run("tree", "--problems"))
			}
			a.golden(t, state.name)

			traced := struct{ Verdict, FailedStep string }{}
			if err := json.Unmarshal([]byte(run("trace", state.trace[0], state.trace[1], "-o", "json")), &traced); err != nil {
				t.Fatal(err)
			}
			if traced.Verdict != state.verdict || traced.FailedStep != state.step {
				t.Errorf("trace: got %s, failed at %q; want %s, failed at %q", traced.Verdict, traced.FailedStep, state.verdict, state.step)
			}
			isShowable(t, run("tree", "--bundles"))
		})
	}
}

// TestSurvey compares the summary of a Bundle on all Clusters for each recorded state.
func TestSurvey(t *testing.T) {
	var a archive
	for _, state := range states() {
		out, err := muster(t, "trace", state.trace[0], "-f", stateFile(t, state.name))
		if err != nil {
			out = "error: " + err.Error()
		}
		isShowable(t, out)
		a.add(state.name, out)
	}
	healthy := stateFile(t, "bundle-failing")
	a.add("bundle-failing, wide", must(t, "trace", "cni", "-f", healthy, "-o", "wide"))
	a.add("bundle-failing, json", must(t, "trace", "cni", "-f", healthy, "-o", "json"))
	a.add("bundle-failing, of a namespace", must(t, "trace", "classes/cni", "-f", healthy, "-n", "classes"))
	a.golden(t, "survey")
}

// isShowable fails for text with characters that control a terminal.
func isShowable(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			t.Fatalf("%U is printed as it is in:\n%q", r, text)
		}
	}
}
