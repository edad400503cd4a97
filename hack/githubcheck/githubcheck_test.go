// Package githubcheck holds the rules for what is in .github/ that no linter knows.
package githubcheck

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const root = "../.."

func read(t *testing.T, path string, into any) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := yaml.Unmarshal(content, into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return string(content)
}

// modules returns the folders with a go.mod, from the root.
func modules(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "dist" || name == "bin") {
			return filepath.SkipDir
		}
		if entry.Name() == "go.mod" {
			dir, err := filepath.Rel(root, filepath.Dir(path))
			found = append(found, filepath.ToSlash(dir))
			return err
		}
		return nil
	})
	if err != nil || len(found) < 5 {
		t.Fatalf("modules: %q, %v", found, err)
	}
	return found
}

// A module that nobody updates is one with known vulnerabilities, sooner or later.
func TestEveryModuleIsUpdated(t *testing.T) {
	var config struct {
		Updates []struct {
			Ecosystem   string   `json:"package-ecosystem"`
			Directory   string   `json:"directory"`
			Directories []string `json:"directories"`
		} `json:"updates"`
	}
	read(t, ".github/dependabot.yml", &config)
	updated := map[string]bool{}
	for _, update := range config.Updates {
		if update.Ecosystem == "gomod" {
			for _, directory := range append(update.Directories, update.Directory) {
				updated["/"+strings.Trim(directory, "/")] = true
			}
		}
	}
	all := modules(t)
	for _, module := range all {
		directory := "/" + strings.TrimPrefix(module, ".")
		if !updated[directory] {
			t.Errorf(".github/dependabot.yml does not know the module in %s: add it under updates", module)
		}
		delete(updated, directory)
	}
	delete(updated, "/")
	for directory := range updated {
		t.Errorf(".github/dependabot.yml names %s, where there is no module", directory)
	}
}

// Modules that the Makefile does not know are never tidied.
func TestEveryModuleIsTidied(t *testing.T) {
	line := regexp.MustCompile(`(?m)^MODULES := (.*)$`).FindStringSubmatch(read(t, "Makefile", nil))
	if line == nil {
		t.Fatal("there is no MODULES in the Makefile")
	}
	named := strings.Fields(strings.ReplaceAll(line[1], "$(wildcard test/parts/*)", ""))
	for _, module := range modules(t) {
		if !slices.Contains(named, module) && filepath.Dir(module) != "test/parts" {
			t.Errorf("MODULES of the Makefile lacks %s", module)
		}
	}
}

// workflow is the part of one that rules are about.
type workflow struct {
	Permissions *map[string]string `json:"permissions"`
	Jobs        map[string]struct {
		Permissions map[string]string `json:"permissions"`
		Timeout     int               `json:"timeout-minutes"`
		Steps       []struct {
			Uses string         `json:"uses"`
			Run  string         `json:"run"`
			With map[string]any `json:"with"`
		} `json:"steps"`
	} `json:"jobs"`
}

var (
	byDigest = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	pinned   = regexp.MustCompile(`(?m)uses: ([\w.-]+/[\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$`)
)

func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	byTag := read(t, ".github/README.md", nil)
	versions := map[string]string{}
	for _, file := range files {
		name, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		var w workflow
		text := read(t, name, &w)
		if w.Permissions == nil || len(*w.Permissions) > 0 {
			t.Errorf("%s: the permissions at the top are not {}", name)
		}
		uses := 0
		for id, job := range w.Jobs {
			if len(job.Permissions) == 0 || job.Timeout == 0 {
				t.Errorf("%s: job %s says no permissions, or no timeout-minutes", name, id)
			}
			for _, step := range job.Steps {
				if strings.Contains(step.Run, "${{") {
					t.Errorf("%s: job %s: a script holds an expression, which others may write: hand it over by env: %s", name, id, step.Run)
				}
				if step.Uses == "" {
					continue
				}
				if !byDigest.MatchString(step.Uses) {
					if !strings.Contains(byTag, "`"+step.Uses+"`") {
						t.Errorf("%s: %s is not pinned by digest, and not listed in .github/README.md", name, step.Uses)
					}
					continue
				}
				uses++
				if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
					t.Errorf("%s: job %s: its checkout keeps the token: set persist-credentials: false", name, id)
				}
			}
		}
		matches := pinned.FindAllStringSubmatch(text, -1)
		if len(matches) != uses {
			t.Errorf("%s: %d of %d pinned actions say their version as a comment", name, len(matches), uses)
		}
		for _, match := range matches {
			// The parts of one action are released together.
			action := strings.Join(strings.SplitN(match[1], "/", 3)[:2], "/")
			if first := versions[action]; first != "" && first != match[2] {
				t.Errorf("%s: %s is pinned to two digests", name, action)
			}
			versions[action] = match[2]
		}
	}
}

// What builds a release can neither sign nor publish, and what publishes it builds nothing:
// of all that runs in a build, nothing gets hold of a right.
func TestReleaseHasLeastRights(t *testing.T) {
	var release workflow
	read(t, ".github/workflows/release.yaml", &release)
	want := map[string]map[string]string{
		"build": {"contents": "read"},
		"sign":  {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
		"draft": {"contents": "write"},
	}
	if len(release.Jobs) != len(want) {
		t.Errorf("release.yaml has %d jobs, of which %d are looked at", len(release.Jobs), len(want))
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

// A tag that nobody has merged is refused, with what to do.
func TestTagIsOnMain(t *testing.T) {
	script, err := filepath.Abs(filepath.Join(root, "hack/on-main.sh"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"commit", "--quiet", "--allow-empty", "--message=first"}, {"tag", "--annotate", "--message=x", "v1.0.0"},
		{"commit", "--quiet", "--allow-empty", "--message=second"},
		{"switch", "--quiet", "--create=aside"}, {"commit", "--quiet", "--allow-empty", "--message=aside"}, {"tag", "v1.1.0"},
	} {
		if out, err := run("git", args...); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if out, err := run(script, "v1.0.0", "main"); err != nil {
		t.Errorf("a tag on main is refused: %v\n%s", err, out)
	}
	if out, err := run(script, "v1.1.0", "main"); err == nil || !strings.Contains(out, "which is not on main: merge it first") {
		t.Errorf("a tag aside of main: %v\n%s", err, out)
	}
	if out, err := run(script, "aside", "main"); err == nil {
		t.Errorf("a branch is taken for a tag:\n%s", out)
	}
}

// What is released is vouched for, program by program.
func TestEveryImageIsAttested(t *testing.T) {
	release := read(t, ".github/workflows/release.yaml", nil)
	mains, err := filepath.Glob(filepath.Join(root, "cmd/*/main.go"))
	if err != nil || len(mains) == 0 {
		t.Fatal(mains, err)
	}
	for _, main := range mains {
		name := filepath.Base(filepath.Dir(main))
		if strings.HasPrefix(name, "kubectl-") { // It has no image; its archives are among the files.
			if !strings.Contains(release, "checksums.txt") {
				t.Errorf("release.yaml does not vouch for the files, of which %s is one", name)
			}
			continue
		}
		if subjects := strings.Count(release, "subject-name: ${{ env.REGISTRY }}/muster-"+name+"\n"); subjects != 2 {
			t.Errorf("release.yaml attests %d of two things about the image of %s: provenance and SBOM", subjects, name)
		}
		if strings.Count(release, "subject-digest: ${{ steps.push.outputs."+name+" }}\n") != 2 || !strings.Contains(release, "sbom-path: dist/release/muster-"+name+".cdx.json\n") {
			t.Errorf("release.yaml attests something else as the image of %s, or another SBOM", name)
		}
	}
}
