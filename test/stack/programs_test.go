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
	t.Setenv(programsVariable, folder)
	options, err := Options{Muster: true, Dir: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"webhook": filepath.Join(folder, "webhook")}, options.Binaries); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}

	// A test that brings its own programs is about these.
	own := map[string]string{"fixture": "/fixture"}
	options, err = Options{Muster: true, Dir: t.TempDir(), Binaries: own}.withDefaults()
	if diff := cmp.Diff(own, options.Binaries); err != nil || diff != "" {
		t.Errorf("%v, own programs (-want +got):\n%s", err, diff)
	}

	// Silence would mean that the test ran something else than was asked for.
	for _, folder := range []string{t.TempDir(), filepath.Join(folder, "none")} {
		t.Setenv(programsVariable, folder)
		if _, err := (Options{Muster: true, Dir: t.TempDir()}).withDefaults(); err == nil {
			t.Errorf("no error for %s", folder)
		}
	}
}
