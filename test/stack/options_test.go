package stack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProgramsFromOutside(t *testing.T) {
	folder := t.TempDir()
	for name, mode := range map[string]os.FileMode{"webhook": 0o755, "README": 0o644} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	own := map[string]string{"fixture": "/fixture"}
	for _, test := range []struct {
		what, folder string
		binaries     map[string]string
		want         map[string]string
	}{
		{"a folder", folder, nil, map[string]string{"webhook": filepath.Join(folder, "webhook")}},
		{"a test that brings its own programs is about these", folder, own, own},
		// Without an error the test would run other programs than its caller named.
		{"an empty folder", t.TempDir(), nil, nil},
		{"no folder", filepath.Join(folder, "none"), nil, nil},
	} {
		t.Setenv(programsVariable, test.folder)
		options, err := Options{Muster: true, Dir: t.TempDir(), Binaries: test.binaries}.withDefaults()
		if diff := cmp.Diff(test.want, options.Binaries); diff != "" || (err == nil) != (test.want != nil) {
			t.Errorf("%s: %v, programs (-want +got):\n%s", test.what, err, diff)
		}
	}
}
