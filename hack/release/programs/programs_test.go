package programs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A new program must be known in all of these places.
func TestAll(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	if err != nil || len(mains) == 0 {
		t.Fatal(mains, err)
	}
	for _, main := range mains {
		name := filepath.Base(filepath.Dir(main))
		if !slices.ContainsFunc(All, func(p Program) bool { return p.Built() == name }) {
			t.Errorf("cmd/%s has no image: add it to hack/release/programs", name)
		}
	}
	if len(mains) != len(All) {
		t.Errorf("there are %d images of %d commands", len(All), len(mains))
	}
}

// Manifests use the names under which images are pushed.
func TestManifests(t *testing.T) {
	for _, program := range All {
		file := "manifests/" + program.Name + "/deployment.yaml"
		if program.IsDeployed() && !strings.Contains(read(t, file), "image: "+Registry+"/"+program.Image()+":"+Version+"\n") {
			t.Errorf("%s does not run the image of %s, version %s", file, program.Name, Version)
		}
	}
}
