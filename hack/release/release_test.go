package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/hack/release/assets"
	"github.com/muster-fleet/muster/hack/release/images"
	"github.com/muster-fleet/muster/hack/release/programs"
)

// version is one that will hardly be released, of an existing series.
const version = "v0.1.0-test.1"

// isTrial builds images and plugin for this machine only, because each further platform compiles everything
// again. `make test-release` builds for all.
var isTrial = os.Getenv("MUSTER_RELEASE") == "trial"

// assetsOf makes the release in a clone.
func assetsOf(t *testing.T, dir string) {
	t.Helper()
	must(t, dir, tool, "assets", "-root=.", "-version="+version, fmt.Sprintf("-trial=%t", isTrial))
}

// tool is the command under test, which runs as a separate process.
var tool string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "muster-release-")
		if err != nil {
			panic(err)
		}
		defer func() {
			if err := os.RemoveAll(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		tool = filepath.Join(dir, "release")
		if out, err := exec.Command("go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// runIn runs a command in a folder, and returns its output.
func runIn(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	gitConfig := "GIT_CONFIG_GLOBAL=/dev/null"
	if config := os.Getenv("GIT_CONFIG_GLOBAL"); config != "" {
		gitConfig = "GIT_CONFIG_GLOBAL=" + config
	}
	// The environment of the tests must not change times and committers.
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=", gitConfig, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %q: %w\n%s", name, args, err, stderr.String())
	}
	return stdout.String(), err
}

func must(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := runIn(t, dir, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// clone returns a clone of a repository, without uncommitted changes.
func clone(t *testing.T, from string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "muster")
	must(t, ".", "git", "clone", "--quiet", from, dir)
	return dir
}

// releasable returns a clone whose last commit can be released.
func releasable(t *testing.T) string {
	t.Helper()
	dir := clone(t, "../..")
	edit(t, dir, "CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n## ["+version[1:]+"] - 2026-11-22\n")
	must(t, dir, "git", "commit", "--quiet", "--all", "--message=Release "+version)
	return dir
}

// otherwise configures git and Go with unusual settings, which change files, diffs and binaries.
func otherwise(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for variable, content := range map[string]string{
		"GIT_CONFIG_GLOBAL": "[core]\n\tautocrlf = true\n\tabbrev = 4\n[status]\n\tshowUntrackedFiles = no\n\tshort = true\n[log]\n\tshowSignature = true\n",
		"GOENV":             "GOFLAGS=-tags=otherwise -buildvcs=true\nGOEXPERIMENT=nodwarf5\nGOAMD64=v3\nGOARM64=v9.0\nGOFIPS140=latest\n",
	} {
		file := filepath.Join(dir, variable)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(variable, file)
	}
}

func edit(t *testing.T, dir, file, from, to string) {
	t.Helper()
	path := filepath.Join(dir, file)
	content, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(content, []byte(from)) {
		t.Fatalf("there is no %q in %s: %v", from, file, err)
	}
	if err := os.WriteFile(path, bytes.Replace(content, []byte(from), []byte(to), 1), 0o644); err != nil {
		t.Fatal(err)
	}
}

// digests returns the digest of each file below a folder.
func digests(t *testing.T, dir string) map[string]string {
	t.Helper()
	result := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		result[name] = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// The whole story: two people release the same commit, in clones at different places, and one of them does
// it twice. Then the assets are used as by users.
func TestRelease(t *testing.T) {
	// Built before the settings are unusual, with which everything is compiled again.
	tools := t.TempDir()
	must(t, "../../test/parts/controllers", "go", "build", "-o", tools+"/", "sigs.k8s.io/cluster-api/cmd/clusterctl")
	must(t, ".", "go", "build", "-o", tools+"/", "github.com/google/go-containerregistry/cmd/crane")
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	first := releasable(t)
	second := filepath.Join(t.TempDir(), "muster")
	for _, dir := range []string{first, second} {
		begin := time.Now()
		if dir == second {
			otherwise(t)
			must(t, ".", "git", "clone", "--quiet", first, second)
		}
		assetsOf(t, dir)
		t.Logf("%s released in %s", dir, time.Since(begin).Round(time.Second))
	}
	made := digests(t, filepath.Join(first, "dist", "release"))
	if diff := cmp.Diff(made, digests(t, filepath.Join(second, "dist", "release"))); diff != "" {
		t.Errorf("two clones give different bytes (-first +second):\n%s", diff)
	}
	assetsOf(t, first)
	if diff := cmp.Diff(made, digests(t, filepath.Join(first, "dist", "release"))); diff != "" {
		t.Errorf("the second time gives different bytes (-first +second):\n%s", diff)
	}
	revision := strings.TrimSpace(must(t, first, "git", "rev-parse", "HEAD"))
	t.Run("assets", func(t *testing.T) { checkAssets(t, filepath.Join(first, "dist", "release")) })
	t.Run("images", func(t *testing.T) { checkImages(t, first, revision) })
}

func checkAssets(t *testing.T, dir string) {
	wanted := []string{
		"install.yaml", "registrar.yaml", "installer.yaml", "helm.yaml", "helmreadsecrets.yaml", "classlabels.yaml", "mappingauthors.yaml", "monitoring.yaml", "addon-components.yaml", "metadata.yaml", "capi-operator.yaml", "images.txt", "notes.md", "checksums.txt", "muster-images-" + version + ".tar", "muster-airgap-" + version + ".tar",
		"muster-webhook.cdx.json", "muster-syncer.cdx.json", "muster-registrar.cdx.json", "muster-installer.cdx.json", "muster-helm.cdx.json",
		"muster.krew.yaml", "muster.k9s.yaml",
	}
	machines := assets.Machines
	if isTrial {
		machines = []assets.Machine{{System: runtime.GOOS, Arch: runtime.GOARCH}}
	}
	for _, machine := range machines {
		wanted = append(wanted, "kubectl-muster-"+version+"-"+machine.System+"-"+machine.Arch+".tar.gz")
	}
	for _, want := range wanted {
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
	var run string
	for _, manifest := range []string{"install.yaml", "registrar.yaml", "installer.yaml", "helm.yaml"} {
		content, err := os.ReadFile(filepath.Join(dir, manifest))
		if err != nil {
			t.Fatal(err)
		}
		run += string(content)
	}
	for _, program := range programs.All {
		if !program.IsDeployed() {
			continue // People run it themselves.
		}
		if !strings.Contains(run, "image: "+programs.Registry+"/"+program.Image()+":"+version+"\n") {
			t.Errorf("nothing runs %s of %s", program.Image(), version)
		}
	}
	operator, err := os.ReadFile(filepath.Join(dir, "capi-operator.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`v0\.1\.0[^\n]*`).FindAllString(string(operator), -1); len(found) != 6 || strings.Count(strings.Join(found, "\n"), version) != 6 {
		t.Errorf("capi-operator.yaml says these versions, not %s six times: %q", version, found)
	}
	inside := t.TempDir()
	must(t, inside, "tar", "-xf", filepath.Join(dir, "muster-airgap-"+version+".tar"))
	outside := digests(t, dir)
	for name, digest := range digests(t, filepath.Join(inside, "muster-airgap-"+version)) {
		if name != "checksums.txt" && outside[name] != digest {
			t.Errorf("%s is another file in the archive", name)
		}
	}
}

// The command refuses an impossible release before it builds anything, and says what to do.
func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		version string
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"no version":    {want: "no version is given: say which, for example VERSION=v0.1.0"},
		"not a version": {version: "0.1", want: `"0.1" is not a version: give one as in semantic versioning`},
		"changed": {version: version, want: "commit, stash or remove README.md, left-over", prepare: func(t *testing.T, dir string) {
			edit(t, dir, "README.md", "# Muster\n", "# Mustard\n")
			if err := os.WriteFile(filepath.Join(dir, "left-over"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		"changed, and git was told to overlook it": {version: version, want: "commit, stash or remove Makefile, README.md, left-over", prepare: func(t *testing.T, dir string) {
			must(t, dir, "git", "config", "status.showUntrackedFiles", "no")
			must(t, dir, "git", "update-index", "--assume-unchanged", "README.md")
			must(t, dir, "git", "update-index", "--skip-worktree", "Makefile")
			edit(t, dir, "README.md", "# Muster\n", "# Mustard\n")
			edit(t, dir, "Makefile", "help: ", "Help: ")
			for file, content := range map[string]string{".git/info/exclude": "left-over\n", "left-over": ""} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"not in the changelog": {version: "v0.1.0-test.2", want: `put a heading "## [0.1.0-test.2] - YYYY-MM-DD" below "## [Unreleased]", commit that`},
		"tagged elsewhere": {version: version, want: version + " is already the tag of commit ", prepare: func(t *testing.T, dir string) {
			must(t, dir, "git", "tag", "--annotate", "--message=x", version, "HEAD~1")
		}},
		"another image in a manifest": {version: version, want: "dist/registrar.yaml: it names ghcr.io/muster-fleet/other:v0.1.0, which is not built here: add its program to hack/release/programs", prepare: func(t *testing.T, dir string) {
			edit(t, dir, "manifests/registrar/deployment.yaml", "muster-registrar:v", "other:v")
			must(t, dir, "git", "commit", "--quiet", "--all", "--message=x")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := releasable(t)
			if test.prepare != nil {
				test.prepare(t, dir)
			}
			if _, err := runIn(t, dir, tool, "assets", "-root=.", "-version="+test.version); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
			for _, folder := range []string{"release", "images"} {
				if _, err := os.Stat(filepath.Join(dir, "dist", folder)); err == nil {
					t.Errorf("it was refused, but dist/%s was made", folder)
				}
			}
		})
	}
}

// Without a registry, or without images, push says what to do.
func TestPushRefusals(t *testing.T) {
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"no registry is given: say where to push the images": {"push", "-root=."},
		"run make images first":                              {"push", "-root=.", "-registry=localhost:1"},
		"say what to do":                                     {"pus"},
	} {
		if _, err := runIn(t, dir, tool, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// checkImages pushes the images to a registry, pulls them from there, and asks the programs for their
// versions.
func checkImages(t *testing.T, dir, revision string) {
	address := startRegistry(t)
	pushed := must(t, dir, tool, "push", "-root=.", "-registry="+address+"/some/where")
	listed, err := os.ReadFile(filepath.Join(dir, "dist", "release", "images.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ReplaceAll(string(listed), programs.Registry, address+"/some/where"); pushed != want {
		t.Errorf("pushed\n%swant\n%s", pushed, want)
	}
	for _, registry := range []string{address + "/some/where", address} { // The other commands take the images from the first one.
		checkInstructions(t, dir, registry)
	}
	into := t.TempDir()
	must(t, dir, tool, "pull", "-root=.", "-registry="+address+"/some/where", "-into="+into)
	for _, program := range programs.All {
		binary := filepath.Join(into, program.Name)
		out := must(t, into, binary, "--version")
		if want := program.Name + " " + version + " (commit " + revision + " of "; !strings.HasPrefix(out, want) {
			t.Errorf("the pulled program says %q, want %q", out, want)
		}
		checkSBOM(t, filepath.Join(dir, "dist", "release", program.Image()+".cdx.json"), binary)
	}
	for ref := range strings.Lines(pushed) {
		checkIndex(t, strings.TrimSpace(ref), revision)
	}
	t.Run("commands", func(t *testing.T) { checkCommands(t, filepath.Join(dir, "dist", "release"), into, address) })
}

// checkInstructions pushes the images, renders Helm's chart, a kustomization, the components by clusterctl and an
// AddonProvider as push says, and pulls every image that they name.
func checkInstructions(t *testing.T, dir, registry string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool, "push", "-root=.", "-registry="+registry)
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	find := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(said.String())
		if found == nil {
			t.Fatalf("push does not say %q:\n%s", pattern, said.String())
		}
		return found[1]
	}
	var optional []string
	deployed := map[bool]int{}
	for _, program := range programs.All {
		if program.IsDeployed() {
			deployed[program.Default]++
			if !program.Default {
				optional = append(optional, program.Name)
			}
		}
	}
	check := func(channel string, want int, named []string) {
		t.Helper()
		if len(named) != want {
			t.Errorf("%s names %q, not %d programs:\n%s", channel, named, want, said.String())
		}
		for _, image := range named {
			if !strings.HasPrefix(image, registry+"/") {
				t.Errorf("%s names %s, which push has not pushed", channel, image)
			} else if _, err := images.Pull(t.Context(), image, t.TempDir()); err != nil {
				t.Errorf("%s names %s: %v", channel, image, err)
			}
		}
	}
	all, components := deployed[true]+deployed[false], deployed[true]

	args := []string{"tool", "-modfile=tools/helm/go.mod", "helm", "template", "--no-hooks", "muster"}
	args = append(args, strings.Fields(find(`helm install muster (.*)`))...)
	for _, component := range optional {
		args = append(args, "--set", component+".enabled=true")
	}
	check("Helm", all, imagesIn(must(t, dir, "go", args...)))

	mine := filepath.Join(dir, "mine")
	if err := os.Mkdir(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	resources := "resources: [../manifests/default, ../manifests/" + strings.Join(optional, ", ../manifests/") + "]\n"
	if err := os.WriteFile(filepath.Join(mine, "kustomization.yaml"), []byte(resources+"images:\n"+find(`(?s)\n  images:\n(.*)clusterctl`)), 0o644); err != nil {
		t.Fatal(err)
	}
	check("kustomize", all, imagesIn(must(t, dir, "go", "tool", "-modfile=tools/go.mod", "kustomize", "build", "mine")))
	must(t, dir, "rm", "-r", "mine")

	released := filepath.Join(dir, "dist", "release")
	page, err := os.ReadFile(filepath.Join(dir, "docs/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	ofPage := regexp.MustCompile("`(images: {addon-muster: .*?)`").FindSubmatch(page)
	if ofPage == nil {
		t.Fatal("docs/install.md does not override images for clusterctl")
	}
	check("clusterctl", components, imagesIn(generated(t, released, find(`(images: {addon-muster: .*)`))))
	check("clusterctl, as on the page,", components,
		imagesIn(generated(t, released, strings.ReplaceAll(string(ofPage[1]), "registry.example.com/muster", registry))))

	check("the operator", components, customized(t, released, find(`(?s)(  additionalDeployments:\n.*)kind, without`)))
}

var imageField = regexp.MustCompile(`(?m)^ *(?:- )?image: "?([^" \n]+)"?$`)

func imagesIn(manifests string) (result []string) {
	for _, match := range imageField.FindAllStringSubmatch(manifests, -1) {
		result = append(result, match[1])
	}
	return result
}

// generated returns the released components as clusterctl installs them, with the page's commands and a line of its
// configuration.
func generated(t *testing.T, released, override string) string {
	t.Helper()
	const init = "clusterctl init --addon muster\n"
	commands := command(t, "docs/install.md", init)
	dir := t.TempDir()
	if err := os.Symlink(released, filepath.Join(dir, "dist")); err != nil {
		t.Fatal(err)
	}
	return follow(t, dir, fmt.Sprintf("export HOME=%s CLUSTERCTL_DISABLE_VERSIONCHECK=true\n", dir)+
		strings.ReplaceAll(commands, init, fmt.Sprintf("echo '%s' >> $config\nclusterctl generate provider --addon muster:%s\n", override, version)))
}

// customized returns the images of the released components' Deployments, once the operator has set those of an
// AddonProvider. It skips Deployments and containers of other names without a word.
func customized(t *testing.T, released, spec string) (result []string) {
	t.Helper()
	type container struct{ Name, Image, ImageURL string }
	var provider struct {
		AdditionalDeployments map[string]struct {
			Deployment struct{ Containers []container }
		}
	}
	if err := yaml.UnmarshalStrict([]byte(spec), &provider); err != nil {
		t.Fatalf("%v\n%s", err, spec)
	}
	components, err := os.ReadFile(filepath.Join(released, "addon-components.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(components), "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Template struct {
					Spec struct{ Containers []container }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind != "Deployment" {
			continue
		}
		set := provider.AdditionalDeployments[object.Metadata.Name].Deployment.Containers
		delete(provider.AdditionalDeployments, object.Metadata.Name)
		for _, c := range object.Spec.Template.Spec.Containers {
			image := c.Image
			for _, its := range set {
				if its.Name == c.Name {
					image = its.ImageURL
				}
			}
			result = append(result, image)
		}
	}
	for name := range provider.AdditionalDeployments {
		t.Errorf("push customizes a Deployment %s, which the operator does not install", name)
	}
	return result
}

// startRegistry runs a registry as a separate process, and returns its address.
func startRegistry(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "address")
	cmd := exec.Command(tool, "registry", "-announce="+file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the registry: %v", err)
		}
	})
	for range 100 {
		if address, err := os.ReadFile(file); err == nil {
			return string(address)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the registry has not started")
	return ""
}
