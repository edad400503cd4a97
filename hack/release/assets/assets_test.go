package assets

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-fleet/muster/hack/release/source"
)

func TestNotes(t *testing.T) {
	const changelog = "# Changelog\n\n## [Unreleased]\n\n- next\n\n## [0.2.0] - 2026-11-22\n\n### Added\n\n- this\n\n## [v0.2.0-rc.1]\n\n- that\n\n## [0.1.0]\n\n## [0.0.1]\n- first\n"
	for version, want := range map[string]string{"v0.2.0": "### Added\n\n- this\n", "v0.2.0-rc.1": "- that\n", "v0.0.1": "- first\n"} {
		if got, err := notes(changelog, version); err != nil || got != want {
			t.Errorf("%s: %v, %q", version, err, got)
		}
	}
	for version, want := range map[string]string{"v0.3.0": "has no section of v0.3.0", "v0.2": "has no section", "v0.1.0": "the section [0.1.0] of CHANGELOG.md is empty"} {
		if got, err := notes(changelog, version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %q", version, err, got)
		}
	}
}

func TestWithVersion(t *testing.T) {
	const manifest = "      - name: manager\n        image: ghcr.io/muster-fleet/muster-webhook:v0.1.0\n      - image: ghcr.io/muster-fleet/muster-syncer\n# image: of the past\ndescription: the image: none\n"
	got, err := withVersion([]byte(manifest), "v0.2.0")
	want := strings.Replace(strings.Replace(manifest, "v0.1.0", "v0.2.0", 1), "muster-syncer\n", "muster-syncer:v0.2.0\n", 1)
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, image := range []string{"nginx:1", "docker.io/muster-webhook-2:v0.1.0", "ghcr.io/muster-fleet/muster-other:v0.1.0"} {
		if _, err := withVersion([]byte("image: "+image+"\n"), "v0.2.0"); err == nil {
			t.Errorf("%s: no error", image)
		}
	}
}

func TestCheckSeries(t *testing.T) {
	const metadata = "apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3\nkind: Metadata\nreleaseSeries:\n- {major: 0, minor: 1, contract: v1beta2}\n- {major: 1, minor: 0, contract: v1beta2}\n"
	for version, ok := range map[string]bool{"v0.1.0": true, "v0.1.7-rc.1": true, "v1.0.3": true, "v0.2.0": false, "v0.10.0": false, "v1.1.0": false} {
		if err := checkSeries([]byte(metadata), version); (err == nil) != ok {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// The chart has the release's version, and lacks the notes for its authors.
func TestChart(t *testing.T) {
	root := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	run("git", "init", "--quiet")
	src := &source.Source{Root: root, Version: "v0.2.0-rc.1", Date: time.Unix(1e9, 0)}
	if name, packed, err := chart(t.Context(), src); name != "" || packed != nil || err != nil {
		t.Errorf("no chart: %q, %d bytes, %v", name, len(packed), err)
	}
	for file, content := range map[string]string{
		"Chart.yaml": "apiVersion: v2\nname: muster\nversion: 0.0.0\nappVersion: \"v0.0.0\"\ndependencies:\n- {name: x, version: 1.0.0}\n", "values.yaml": "{}\n", "templates/a.yaml": "a\n",
		"tests/a_test.yaml": "t\n", "notes.orig": "o\n", ".helmignore": "# not shipped\ntests/\n*.orig\n",
	} {
		path := filepath.Join(root, chartFolder, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("git", "add", ".")
	name, packed, err := chart(t.Context(), src)
	if err != nil || name != "muster-0.2.0-rc.1.tgz" {
		t.Fatal(name, err)
	}
	if err := os.WriteFile(filepath.Join(root, name), packed, 0o644); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("muster/Chart.yaml\nmuster/templates/a.yaml\nmuster/values.yaml\n", run("tar", "-tzf", name)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	want := "apiVersion: v2\nname: muster\nversion: 0.2.0-rc.1\nappVersion: v0.2.0-rc.1\ndependencies:\n- {name: x, version: 1.0.0}\n"
	if diff := cmp.Diff(want, run("tar", "-xzOf", name, "muster/Chart.yaml")); diff != "" {
		t.Errorf("Chart.yaml (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(root, chartFolder, ".helmignore"), []byte("!keep\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := chart(t.Context(), src); err == nil {
		t.Error("a pattern that is not understood is passed over")
	}
}
