package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/hack/release/programs"
)

const workflowFile = "../../.github/workflows/release.yaml"

func readWorkflow(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(workflowFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// The job that builds a release can neither sign nor publish, and the job that publishes builds nothing: so no
// code that runs in a build gets such rights.
func TestReleaseHasLeastRights(t *testing.T) {
	var release struct {
		Permissions *map[string]string `json:"permissions"`
		Jobs        map[string]struct {
			Permissions map[string]string `json:"permissions"`
			Steps       []struct {
				Uses, Run string
			} `json:"steps"`
		} `json:"jobs"`
	}
	if err := yaml.Unmarshal([]byte(readWorkflow(t)), &release); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{
		"build": {"contents": "read"},
		"sign":  {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
		"draft": {"contents": "write"},
	}
	if release.Permissions == nil || len(*release.Permissions) > 0 || len(release.Jobs) != len(want) {
		t.Errorf("%s: the permissions at the top are not {}, or it has another number of jobs than %d", workflowFile, len(want))
	}
	for id, job := range release.Jobs {
		if !maps.Equal(job.Permissions, want[id]) {
			t.Errorf("job %s has the permissions %v, not %v", id, job.Permissions, want[id])
		}
		takes := false
		for _, step := range job.Steps {
			if id != "build" && strings.Contains(step.Run, "make release") {
				t.Errorf("job %s builds, and may do more than read", id)
			}
			if id == "draft" && (strings.Contains(step.Uses, "checkout") || strings.Contains(step.Uses, "setup-go") || strings.Contains(step.Run, "make ")) {
				t.Errorf("job draft runs something of the repository: %s%s", step.Uses, step.Run)
			}
			takes = takes || strings.Contains(step.Run, `echo "$CHECKSUMS  checksums.txt" | sha256sum --check`)
		}
		if id != "build" && !takes {
			t.Errorf("job %s does not check what it was handed", id)
		}
	}
	if steps := release.Jobs["build"].Steps; len(steps) < 2 || steps[1].Run != `hack/on-main.sh "$VERSION"` {
		t.Error("job build does not begin with asking whether the tag is on main")
	}
}

// Every released program has an attestation.
func TestEveryImageIsAttested(t *testing.T) {
	release := readWorkflow(t)
	for _, program := range programs.All {
		for text, count := range map[string]int{
			"subject-name: ${{ env.REGISTRY }}/" + program.Image() + "\n":      2, // provenance and SBOM
			"subject-digest: ${{ steps.push.outputs." + program.Name + " }}\n": 2,
			"sbom-path: dist/release/" + program.Image() + ".cdx.json\n":       1,
		} {
			if found := strings.Count(release, text); found != count {
				t.Errorf("%s has %d times, not %d: %s", workflowFile, found, count, text)
			}
		}
	}
}

// The script refuses a tag of an unmerged commit, and says what to do.
func TestTagIsOnMain(t *testing.T) {
	script, err := filepath.Abs("../on-main.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"commit", "--quiet", "--allow-empty", "--message=first"}, {"tag", "--annotate", "--message=x", "v1.0.0"},
		{"commit", "--quiet", "--allow-empty", "--message=second"},
		{"switch", "--quiet", "--create=aside"}, {"commit", "--quiet", "--allow-empty", "--message=aside"}, {"tag", "v1.1.0"},
	} {
		must(t, dir, "git", args...)
	}
	must(t, dir, script, "v1.0.0", "main")
	if _, err := runIn(t, dir, script, "v1.1.0", "main"); err == nil || !strings.Contains(err.Error(), "which is not on main: merge it first") {
		t.Errorf("a tag aside of main: %v", err)
	}
	if _, err := runIn(t, dir, script, "aside", "main"); err == nil {
		t.Error("a branch is taken for a tag")
	}
}
