package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// trace reads the Policies in the Bundle's namespace, for one Cluster and for all.
func TestTraceOfPolicies(t *testing.T) {
	state, err := os.ReadFile(stateFile(t, "cross-namespace"))
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]string{"classes": "a Policy of Fleet in namespace classes requires a ServiceAccount", "team-a": ""} {
		file := filepath.Join(t.TempDir(), "state.yaml")
		if err := os.WriteFile(file, []byte(string(state)+"\n---"+policyIn(namespace)), 0o600); err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) string {
			return through(t, func(reader client.Reader) client.Reader { return reader }, append(append([]string{"trace", "classes/cni"}, args...), "-f", file)...)
		}
		if got := run("team-a/prod"); strings.Contains(got, "✗ policy") != (want != "") || !strings.Contains(got, want) {
			t.Errorf("%s: %s", namespace, got)
		}
		if got := run(); strings.Contains(got, "a Policy refuses its ServiceAccount") != (want != "") {
			t.Errorf("%s: %s", namespace, got)
		}
	}
}
