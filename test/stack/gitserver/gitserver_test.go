package gitserver

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWhatIsPushedIsServed(t *testing.T) {
	ctx := t.Context()
	server, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	repository, err := server.Create(ctx, "apps")
	if err != nil {
		t.Fatal(err)
	}
	for i, files := range []map[string]string{
		{"a/one.yaml": "1", "two.yaml": "2"}, {"two.yaml": "", "three.yaml": "3"},
	} {
		if err := repository.Push(ctx, "change", files); err != nil {
			t.Fatal(err)
		}
		clone := filepath.Join(t.TempDir(), "clone")
		if err := server.run(ctx, server.dir, "clone", repository.URL, clone); err != nil {
			t.Fatal(err)
		}
		for name, want := range []map[string]bool{
			{"a/one.yaml": true, "two.yaml": true}, {"a/one.yaml": true, "two.yaml": false, "three.yaml": true},
		}[i] {
			if _, err := os.Stat(filepath.Join(clone, name)); (err == nil) != want {
				t.Errorf("after push %d, %s: %v", i+1, name, err)
			}
		}
	}
}
