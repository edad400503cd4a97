package assets

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The manifest has what krew needs: the archive for a machine, its digest, and the file to run.
func TestKrew(t *testing.T) {
	var archives []entry
	for _, machine := range Machines {
		archives = append(archives, entry{name: archive("v1.2.3", machine.System, machine.Arch), content: []byte(machine.System + machine.Arch)})
	}
	made, err := krew("v1.2.3", Machines, archives)
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version, ShortDescription string
			Platforms                 []struct {
				Selector         struct{ MatchLabels struct{ OS, Arch string } }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal(made.content, &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Metadata.Name != "muster" || manifest.Spec.Version != "v1.2.3" || len(manifest.Spec.Platforms) != len(Machines) {
		t.Errorf("got %+v", manifest)
	}
	if length := len(manifest.Spec.ShortDescription); length == 0 || length > 60 || strings.HasSuffix(manifest.Spec.ShortDescription, ".") {
		t.Errorf("krew wants a short description: %q", manifest.Spec.ShortDescription)
	}
	for _, platform := range manifest.Spec.Platforms {
		of := platform.Selector.MatchLabels
		name := "kubectl-muster-v1.2.3-" + of.OS + "-" + of.Arch + ".tar.gz"
		if platform.URI != "https://github.com/muster-fleet/muster/releases/download/v1.2.3/"+name {
			t.Errorf("%s/%s is at %s", of.OS, of.Arch, platform.URI)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256([]byte(of.OS+of.Arch))); platform.SHA256 != want {
			t.Errorf("%s/%s has the digest %s", of.OS, of.Arch, platform.SHA256)
		}
		if (platform.Bin == "kubectl-muster.exe") != (of.OS == "windows") || !strings.HasPrefix(platform.Bin, "kubectl-muster") {
			t.Errorf("on %s %s is run", of.OS, platform.Bin)
		}
	}
}
