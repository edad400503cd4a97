package main

import (
	"os/exec"
	"strings"
	"testing"
)

// Helm's library is larger than the rest of Muster. Nobody but the installer pays for it.
func TestOthersDoNotLinkHelm(t *testing.T) {
	for program, links := range map[string]bool{"webhook": false, "syncer": false, "registrar": false, "installer": true} {
		listed, err := exec.Command("go", "list", "-deps", "github.com/muster-fleet/muster/cmd/"+program).Output()
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		found := ""
		for _, pkg := range strings.Fields(string(listed)) {
			if strings.HasPrefix(pkg, "helm.sh/") || strings.HasPrefix(pkg, "oras.land/") || strings.HasPrefix(pkg, "k8s.io/kubectl/") {
				found = pkg
			}
		}
		if (found != "") != links {
			t.Errorf("%s links %q", program, found)
		}
	}
}
