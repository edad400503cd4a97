package parts

import (
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Go compiles a package once for each set of versions below it. `make demo` compiles Muster and these parts, and most of
// what they import is shared.
func TestPartsShareWithMuster(t *testing.T) {
	if Chosen != sets[""] {
		t.Skip("other sets have other versions of what Muster links")
	}
	root := filepath.Join("..", "..", "..")
	programs := map[string][]string{".": {"./cmd/...", "./test/cmd/..."}}
	for _, module := range all {
		if module.name == CAAPH.name { // No part of a stack.
			continue
		}
		dir := path.Join("test", "parts", module.dir)
		for _, p := range module.programs {
			programs[dir] = append(programs[dir], p.pkg)
		}
	}
	linked := map[string]map[string][]string{}
	for dir, packages := range programs {
		for _, module := range modulesUnder(t, filepath.Join(root, dir), packages) {
			name, version, _ := strings.Cut(strings.TrimSpace(module), " ")
			if name == "github.com/google/cel-go" && dir == "test/parts/kube" { // It decides what the API server accepts.
				continue
			}
			if linked[name] == nil {
				linked[name] = map[string][]string{}
			}
			linked[name][version] = append(linked[name][version], dir)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(linked)) {
		if versions := linked[name]; len(versions) > 1 {
			t.Errorf("%s is compiled in several versions: `go get` one of them in each of these folders: %v", name, versions)
		}
	}
	if len(linked["k8s.io/client-go"]) == 0 {
		t.Error("nothing links client-go")
	}
}

// Logs, Fleet's agent image and Muster's table of known defects go by the versions that a set states.
func TestSetsStateWhatTheyPin(t *testing.T) {
	for name, set := range sets {
		for module, want := range map[string][2]string{
			set.kube:        {"k8s.io/kubernetes", set.Kubernetes},
			set.Controllers: {"github.com/rancher/fleet", set.Fleet},
		} {
			out, err := runGo(t.Context(), filepath.Join("..", "..", "parts", module), "list", "-m", "-f", "{{.Version}}", want[0])
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(out)); got != want[1] {
				t.Errorf("the set %q states %s %s, but test/parts/%s pins %s", name, want[0], want[1], module, got)
			}
		}
	}
}

// modulesUnder returns all modules that packages are compiled from, each with its version.
func modulesUnder(t *testing.T, dir string, packages []string) []string {
	t.Helper()
	const format = "{{with .Module}}{{if not .Main}}{{.Path}} {{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}{{end}}"
	out, err := runGo(t.Context(), dir, append([]string{"list", "-deps", "-f", format}, packages...)...)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Compact(slices.Sorted(strings.Lines(string(out))))
}
