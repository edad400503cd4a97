package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/muster-fleet/muster/hack/release/images"
	"github.com/muster-fleet/muster/hack/release/programs"
)

var fenced = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// command returns the code block of a page that contains a text, as users copy it.
func command(t *testing.T, page, text string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range fenced.FindAllStringSubmatch(string(content), -1) {
		if strings.Contains(match[1], text) {
			return strings.ReplaceAll(match[1], "v0.1.0", version)
		}
	}
	t.Fatalf("%s has no command with %q", page, text)
	return ""
}

func follow(t *testing.T, dir, command string) string {
	t.Helper()
	return must(t, dir, "bash", "-euo", "pipefail", "-c", command)
}

// checkCommands runs the documentation's commands with a release, and with a program from its image.
// Signatures are not checked: verifying them needs a network.
func checkCommands(t *testing.T, release, binaries, address string) {
	dir := t.TempDir()
	must(t, dir, "cp", "-r", release+"/.", dir)

	check := command(t, "SECURITY.md", "sha256sum --check")
	checked := follow(t, dir, check)
	// It covers all files except itself.
	if files := len(digests(t, dir)); strings.Count(checked, ": OK\n") != files-1 {
		t.Errorf("the checksums are of other files than the %d:\n%s", files, checked)
	}
	if err := os.WriteFile(filepath.Join(dir, "install.yaml"), []byte("kind: Evil\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := runIn(t, dir, "bash", "-c", check); err == nil {
		t.Errorf("another install.yaml passes:\n%s", out)
	}

	for _, program := range programs.All {
		must(t, dir, "cp", filepath.Join(binaries, program.Name), dir)
	}
	if _, err := exec.LookPath("jq"); err != nil {
		t.Log("not followed, because there is no jq: the comparison with the SBOM")
	} else {
		compare := command(t, "SECURITY.md", "comm -23")
		for _, program := range programs.All {
			if lacking := follow(t, dir, strings.NewReplacer("muster-webhook", program.Image(), "webhook", program.Name).Replace(compare)); lacking != "" {
				t.Errorf("the SBOM of %s lacks\n%s", program.Name, lacking)
			}
		}
		// The SBOM of another program must lack something, or the command could not fail.
		if out := follow(t, dir, strings.ReplaceAll(compare, "go version -m webhook", "go version -m "+tool)); !strings.Contains(out, "go-containerregistry") {
			t.Errorf("the SBOM of the webhook is that of any program, too:\n%s", out)
		}
	}

	// Without a network there is only the archive.
	archive := command(t, "docs/install.md", "tar -xf muster-airgap")
	follow(t, dir, archive)
	inside := filepath.Join(dir, "muster-airgap-"+version)
	must(t, inside, "git", "clone", "--quiet", mustAbs(t, "../.."), "muster")
	pushed := follow(t, inside, strings.ReplaceAll(command(t, "docs/install.md", "-C muster/dist/images"), "registry.example.com/muster", address+"/apart"))
	listed, err := os.ReadFile(filepath.Join(inside, "images.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ReplaceAll(string(listed), programs.Registry, address+"/apart"); !strings.Contains(pushed, want) {
		t.Errorf("out of the archive were pushed\n%swant\n%s", pushed, want)
	}

	checkMirror(t, dir, address)
}

// checkMirror copies the images of a list that names those in the test's registry, as the page says.
func checkMirror(t *testing.T, dir, address string) {
	list := filepath.Join(dir, "images.txt")
	listed, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	pushed := strings.ReplaceAll(string(listed), programs.Registry, address+"/some/where")
	if err := os.WriteFile(list, []byte(pushed), 0o644); err != nil {
		t.Fatal(err)
	}
	follow(t, dir, strings.ReplaceAll(command(t, "docs/install.md", "crane copy"), "registry.example.com/muster", address+"/mirror"))
	for line := range strings.Lines(pushed) {
		name, digest, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(line, "/some/where", "/mirror")), "@")
		if got := strings.TrimSpace(must(t, dir, "crane", "digest", name)); got != digest {
			t.Errorf("%s was copied with the digest %s, not %s", name, got, digest)
		}
		if _, err := images.Pull(t.Context(), name, t.TempDir()); err != nil {
			t.Errorf("the copy: %v", err)
		}
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	absolute, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return absolute
}

// schemaFolder has CycloneDX's own schemas, from the module of the library that writes SBOMs.
type schemaFolder string

// Load loads a schema to which another refers, without a network.
func (dir schemaFolder) Load(url string) (any, error) {
	name := url[strings.LastIndex(url, "/")+1:]
	if name == "jsf-0.82.schema.json" {
		name = "jsf-0.82.schemax.json" // as the library's authors call it
	}
	return jsonschema.FileLoader{}.Load("file://" + filepath.Join(string(dir), name))
}

// validSBOM validates an SBOM with CycloneDX's schema.
func validSBOM(content []byte) error {
	dir, err := exec.Command("go", "list", "-m", "-f={{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	compiler.UseLoader(schemaFolder(filepath.Join(strings.TrimSpace(string(dir)), "schema")))
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		return err
	}
	return schema.Validate(document)
}
