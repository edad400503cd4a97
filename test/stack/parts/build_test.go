package parts

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Go compiles a package once for each set of versions below it, and client-go is below most of the parts. Muster is a minor
// version ahead of them: the programs of Cluster API and Fleet link Kubernetes 1.36 itself.
func TestPartsShare(t *testing.T) {
	const pkg = "k8s.io/client-go/kubernetes"
	parts := filepath.Join("..", "..", "parts")
	kube, controllers := versionsUnder(t, filepath.Join(parts, "kube"), pkg), versionsUnder(t, filepath.Join(parts, "controllers"), pkg)
	if diff := cmp.Diff(kube, controllers); diff != "" {
		t.Errorf("%s: raise these with `go get` in test/parts/controllers, or in test/parts/kube (-kube +controllers):\n%s", pkg, diff)
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

// versionsUnder returns the versions of all modules that a package is compiled from.
func versionsUnder(t *testing.T, dir, pkg string) []string {
	t.Helper()
	const format = "{{with .Module}}{{.Path}} {{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}"
	out, err := runGo(t.Context(), dir, "list", "-deps", "-f", format, pkg)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		versions[strings.TrimSpace(line)] = true
	}
	return slices.Sorted(maps.Keys(versions))
}
