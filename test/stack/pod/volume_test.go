package pod

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/muster-fleet/muster/test/stack/files"
)

func TestVolumeNeverShowsAMixtureOfTwoVersions(t *testing.T) {
	v := &Volume{plan: volumePlan{hostDir: t.TempDir(), kind: "Secret", source: "tls", mode: 0o600}}
	version := func(mark string) map[string][]byte {
		return map[string][]byte{"tls.crt": []byte(mark), "tls.key": []byte(mark)}
	}
	if err := v.write(version("a")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// It resolves the link once, like a reader that opens the directory once.
			dir, err := os.Readlink(filepath.Join(v.plan.hostDir, dataLink))
			if err != nil {
				t.Error(err)
				return
			}
			cert, certErr := os.ReadFile(filepath.Join(v.plan.hostDir, dir, "tls.crt"))
			key, keyErr := os.ReadFile(filepath.Join(v.plan.hostDir, dir, "tls.key"))
			if certErr == nil && keyErr == nil && string(cert) != string(key) {
				t.Errorf("certificate %q with key %q", cert, key)
			}
		}
	})
	for i := range 100 {
		if err := v.write(version(string(rune('a' + i%26)))); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wait.Wait()

	if err := v.write(map[string][]byte{"tls.crt": []byte("last")}); err != nil {
		t.Fatal(err)
	}
	if files.Exists(filepath.Join(v.plan.hostDir, "tls.key")) {
		t.Error("a key that left the Secret is still a file")
	}
	info, err := os.Stat(filepath.Join(v.plan.hostDir, "tls.crt"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v (%v)", info.Mode(), err)
	}
	entries, err := os.ReadDir(v.plan.hostDir)
	if err != nil || len(entries) != 3 {
		t.Errorf("want the link, its directory and one file, got %v (%v)", entries, err)
	}
}
