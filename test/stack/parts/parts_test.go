package parts

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Go compiles a package once for each set of versions under it, and client-go is under
// most of what the parts and Muster consist of.
func TestPartsShareClientGoWithMuster(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	want := clientGoVersions(t, root)
	for _, module := range []Module{Kube, CertManager, Fleet, CAPI} {
		got := clientGoVersions(t, filepath.Join(root, "test", "parts", module.name))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("raise these with `go get` in test/parts/%s, or ours (-Muster +%s):\n%s", module.name, module.name, diff)
		}
	}
}

func clientGoVersions(t *testing.T, dir string) []string {
	t.Helper()
	const format = "{{with .Module}}{{.Path}} {{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}"
	out, err := runGo(t.Context(), dir, "list", "-deps", "-f", format, "k8s.io/client-go/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		versions[strings.TrimSpace(line)] = true
	}
	return slices.Sorted(maps.Keys(versions))
}
