package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/muster-fleet/muster/internal/program"
)

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"render", "--version"}, {"audit", "--version"}} {
		if err := run(t.Context(), args); !errors.Is(err, program.ErrAnswered) {
			t.Errorf("syncer %q: %v", args, err)
		}
	}
}

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
		"an argument":    {args: []string{file}},
		"no file":        {fails: "render: name at least one file with -f"},
		"no such file":   {args: []string{file, file + "-none"}, fails: file + "-none: no such file or directory"},
		"no YAML":        {args: []string{file, "-"}, stdin: "a: b: c", fails: "-: document 1: yaml: "},
		"no v1beta2":     {args: []string{"-"}, stdin: "---\n" + strings.ReplaceAll(clusterAndClass, "v1beta2", "v1beta1"), fails: "-: document 1, Cluster prod: is cluster.x-k8s.io/v1beta1"},
		"help":           {args: []string{"--help"}, fails: pflag.ErrHelp.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := runRender(test.args, strings.NewReader(test.stdin), &stdout, &stderr)
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
				if strings.Count(stdout.String(), want) != 1 {
					t.Errorf("not once %q in:\n%s", want, &stdout)
				}
			}
			if got, want := stderr.String(), "note: Cluster team/ has no name yet (generateName); its Fleet Cluster is named once it has one\n"; got != want {
				t.Errorf("notes: %q, want %q", got, want)
			}
		})
	}
	if err := runRender([]string{"--none"}, nil, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || errors.Is(err, pflag.ErrHelp) {
		t.Errorf("an unknown flag: %v", err)
	}
}
