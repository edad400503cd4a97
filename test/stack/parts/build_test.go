package parts

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProgramsOfOneNameAreBuiltApart(t *testing.T) {
	a, b, other := program{name: "a", pkg: "one/main"}, program{name: "b", pkg: "two/main"}, program{name: "c", pkg: "c"}
	want := [][]program{{a, other}, {b}}
	if diff := cmp.Diff(want, buildable([]program{a, b, other}), cmp.AllowUnexported(program{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBuildReportCountsAndKeepsErrors(t *testing.T) {
	var progress strings.Builder
	report := &buildReport{progress: &progress}
	for _, text := range []string{
		"go: downloading k8s.io/api v0.36.3\nk8s.io/", "api/core/v1\n",
		"# example.com/broken\n", "broken.go:1:1: expected 'package'\n",
	} {
		if _, err := report.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if report.downloaded != 1 || report.compiled != 1 {
		t.Errorf("downloaded %d, compiled %d", report.downloaded, report.compiled)
	}
	if want := "# example.com/broken\nbroken.go:1:1: expected 'package'\n"; report.rest.String() != want {
		t.Errorf("kept %q, not %q", report.rest.String(), want)
	}
	if want := "build: ... 1 modules downloaded, 0 packages compiled\n"; progress.String() != want {
		t.Errorf("said %q, not %q: the second line came too early", progress.String(), want)
	}
}

// Go compiles a package once for each set of versions under it, and these are under most
// of what the parts and Muster consist of.
func TestPartsShareWithMuster(t *testing.T) {
	const clientGo, controllerRuntime, helm = "k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/manager", "helm.sh/helm/v4/pkg/action"
	root := filepath.Join("..", "..", "..")
	for _, shared := range []struct {
		pkg     string
		modules []Module
	}{
		{clientGo, []Module{Kube, CertManager, Fleet, CAPI}},
		{controllerRuntime, []Module{CertManager, Fleet, CAPI}},
		{helm, []Module{Fleet}},
	} {
		want := versionsUnder(t, root, shared.pkg)
		for _, module := range shared.modules {
			got := versionsUnder(t, filepath.Join(root, "test", "parts", module.name), shared.pkg)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: raise these with `go get` in test/parts/%s, or ours (-Muster +%s):\n%s", shared.pkg, module.name, module.name, diff)
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
