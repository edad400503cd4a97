package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-fleet/muster/internal/program"
)

const clusterAndClass = `
apiVersion: v1
kind: List
items:
- {apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: prod, namespace: team}}
- {apiVersion: cluster.x-k8s.io/v1beta2, kind: ClusterClass, metadata: {name: standard, namespace: team}}
---
{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {generateName: test-, namespace: team}}
`

func TestRender(t *testing.T) {
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, []byte(clusterAndClass), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args  []string
		stdin string
		fails string
	}{
		"standard input": {args: []string{"-f", "-"}, stdin: clusterAndClass},
		"a file":         {args: []string{"-f", file}},
		"a folder":       {args: []string{"-f", filepath.Dir(file)}},
		"an argument":    {args: []string{file}, fails: "files are named with -f"},
		"no file":        {fails: "name at least one file with -f"},
		"no such file":   {args: []string{"-f", file, "-f", file + "-none"}, fails: file + "-none: no such file or directory"},
		"no YAML":        {args: []string{"-f", file, "-f", "-"}, stdin: "a: b: c", fails: "-: document 1: yaml: "},
		"v1beta1":        {args: []string{"-f", "-"}, stdin: strings.NewReplacer("v1beta2", "v1beta1").Replace(clusterAndClass)},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := fed(t, test.stdin, append([]string{"render"}, test.args...)...)
			if test.fails != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.fails) {
					t.Errorf("the error is %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"---\napiVersion: fleet.cattle.io/v1alpha1\nkind: Cluster\n", "---\napiVersion: fleet.cattle.io/v1alpha1\nkind: ClusterGroup\n"} {
				if strings.Count(stdout, want) != 1 {
					t.Errorf("not once %q in:\n%s", want, stdout)
				}
			}
			if got, want := stderr, "note: Cluster team/ has no name yet (generateName); its Fleet Cluster is named once it has one\n"; got != want {
				t.Errorf("notes: %q, want %q", got, want)
			}
		})
	}
	if _, _, err := fed(t, "", "render", "--none"); program.ExitCode(err) != 2 {
		t.Errorf("an unknown flag: %v", err)
	}
	if out, _, err := fed(t, clusterAndClass, "render", "-f", "-", "-o", "jsonpath={.kind} "); err != nil || out != "Cluster ClusterGroup " {
		t.Errorf("-o jsonpath: %v, %q", err, out)
	}
}
