package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Helm's library is larger than the rest of Muster. Only the programs that install charts, read charts or preview
// an installation link it.
func TestOthersDoNotLinkHelm(t *testing.T) {
	programs, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, entry := range programs {
		program := entry.Name()
		links := program == "installer" || program == "helm" || program == "kubectl-muster"
		all[program] = true
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
	for _, program := range []string{"webhook", "syncer", "registrar", "kubectl-muster", "installer", "helm"} {
		if !all[program] {
			t.Errorf("%s was not looked at", program)
		}
	}
}
