package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"b.yaml", "a.json", "values.txt", "sub/c.yml", "empty/README.md", "charts/app/Chart.yaml", "charts/app/templates/cm.yaml", "charts/d.yaml"} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(names ...string) (paths []string) {
		for _, name := range names {
			paths = append(paths, filepath.Join(dir, name))
		}
		return paths
	}
	for name, test := range map[string]struct {
		paths     []string
		recursive bool
		exclude   []string
		want      []string
	}{
		"files, in their order":  {paths: append(in("values.txt", "none"), Stdin), want: append(in("values.txt", "none"), Stdin)},
		"a folder":               {paths: in(""), want: in("a.json", "b.yaml")},
		"a folder, and below":    {paths: in(""), recursive: true, want: in("a.json", "b.yaml", "charts/d.yaml", "sub/c.yml")},
		"without a name":         {paths: []string{dir}, recursive: true, exclude: []string{"sub", "b.*"}, want: in("a.json", "charts/d.yaml")},
		"without a path":         {paths: []string{dir}, recursive: true, exclude: []string{"charts/*.yaml", "a"}, want: in("a.json", "b.yaml", "sub/c.yml")},
		"a chart by its name":    {paths: in("charts/app"), recursive: true, want: in("charts/app/Chart.yaml", "charts/app/templates/cm.yaml")},
		"a folder among files":   {paths: in("values.txt", "sub", "b.yaml"), want: in("values.txt", "sub/c.yml", "b.yaml")},
		"the folder of a folder": {paths: in("sub/.."), want: in("a.json", "b.yaml")},
	} {
		got, err := Find(test.paths, test.recursive, test.exclude)
		for i := range got {
			if got[i] != Stdin {
				got[i] = filepath.Clean(got[i])
			}
		}
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	// Otherwise an empty folder would pass every check.
	if _, err := Find(in("empty"), false, nil); err == nil || !strings.Contains(err.Error(), "has no file") {
		t.Errorf("the error is %v", err)
	}
}
