package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/version"
)

// TestHelp checks that the help is short, and names the program as it was called.
func TestHelp(t *testing.T) {
	called := os.Args[0]
	t.Cleanup(func() { os.Args[0] = called })
	for path, name := range map[string]string{"/usr/bin/kubectl-muster": "kubectl muster", "kubectl-muster.exe": "kubectl muster", "/muster": "muster"} {
		os.Args[0] = path
		help := must(t, "--help")
		if lines := strings.Count(help, "\n"); lines > 28 || !strings.Contains(help, "\n  "+name+" COMMAND") || strings.Contains(help, "--kubeconfig string") {
			t.Errorf("%s: %d lines:\n%s", path, lines, help)
		}
		for _, command := range []string{"tree", "trace", "check", "view", "lint", "render", "rollout", "plan", "audit", "agent-manifest", "version"} {
			if !strings.Contains(help, "\n  "+command+" ") {
				t.Errorf("%s is not in the help:\n%s", command, help)
			}
			if own := must(t, command, "--help"); !strings.Contains(own, "\n  "+name+" "+command) || strings.Contains(own, "--kubeconfig string") {
				t.Errorf("%s:\n%s", command, own)
			}
		}
		for _, args := range [][]string{{"options"}, {"options", "--help"}} {
			if shared := must(t, args...); !strings.Contains(shared, "--kubeconfig string") {
				t.Errorf("%q:\n%s", args, shared)
			}
		}
		if got, want := must(t, "--version"), name+" "+version.Get().String()+"\n"; got != want {
			t.Errorf("version: %q, want %q", got, want)
		}
	}
}

// TestUsage checks that wrong arguments exit with 2, which differs from the exit code for findings.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"typo"}, {"tree", "a", "b"}, {"trace"}, {"trace", "a", "b", "c"}, {"trace", "cni", "-o", "mermaid"}, {"tree", "--none"}, {"view", "a"}, {"audit", "a"}, {"audit", "-o", "typo"},
		{"plan", "a"}, {"agent-manifest"}, {"agent-manifest", "/edge"}, {"agent-manifest", "team/"}, {"tree", "--watch", "-f", "-"}, {"tree", "-f", t.TempDir()},
		{"rollout", "typo"}, {"rollout", "status"}, {"rollout", "status", "a", "b"}, {"rollout", "status", "a/"}, {"rollout", "status", "a", "-o", "typo"}, {"rollout", "promote"},
		{"rollout", "promote", "a", "--approval="}, {"rollout", "retry"}, {"tree", "typo", "a"}, {"tree", "cluster", "a", "b"}, {"version", "a"},
	} {
		if _, err := muster(t, args...); program.ExitCode(err) != 2 {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestHints compares the errors for wrong commands and flags.
func TestHints(t *testing.T) {
	called := os.Args[0]
	t.Cleanup(func() { os.Args[0] = called })
	os.Args[0] = plugin
	for args, want := range map[string]string{
		"tre":              `unknown command "tre" for "kubectl muster" (did you mean tree or trace?); see kubectl muster --help`,
		"nonsense":         `unknown command "nonsense" for "kubectl muster"; see kubectl muster --help`,
		"rollout prmote":   `unknown command "prmote" for "kubectl muster rollout" (did you mean promote?); see kubectl muster rollout --help`,
		"rollout undo":     `unknown command "undo" for "kubectl muster rollout" (did you mean abort?); see kubectl muster rollout --help`,
		"check --timout=1": "unknown flag: --timout; see kubectl muster check --help",
		"trace":            "accepts between 1 and 2 arg(s), received 0; see kubectl muster trace --help",
		"check -o typo":    "--output: there is no format \"typo\": choose one of tree, wide, json, yaml, kyaml, name, go-template, go-template-file, template, templatefile, jsonpath, jsonpath-as-json, jsonpath-file",
	} {
		if _, err := muster(t, strings.Fields(args)...); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v, want\n%s", args, err, want)
		}
	}
}

// TestNamespaceCompletion completes -n.
func TestNamespaceCompletion(t *testing.T) {
	out, _, err := fed(t, "", "__complete", "tree", "-f", stateFile(t, "healthy"), "-n", "")
	if err != nil || !strings.HasPrefix(out, "classes\nteam-a\nteam-b\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// A name that a Bundle and a HelmChartProxy have is that of both, and completions name the HelmChartProxy, not its Bundle.
func TestHelmChartProxyByName(t *testing.T) {
	file := stateFile(t, "helmchartproxy-and-bundle")
	for name, want := range map[string][]string{
		"cni":                       {"Bundle classes/cni on Cluster team-a/prod", "HelmChartProxy team-a/cni on Cluster team-a/prod"},
		"team-a/cni":                {"HelmChartProxy team-a/cni on Cluster team-a/prod"},
		"classes/cni":               {"Bundle classes/cni on Cluster team-a/prod"},
		"helmchartproxy/cni":        {"HelmChartProxy team-a/cni on Cluster team-a/prod"},
		"helmchartproxy/team-a/cni": {"HelmChartProxy team-a/cni on Cluster team-a/prod"},
		"elsewhere":                 {"HelmChartProxy team-a/elsewhere on Cluster team-a/prod"},
		"classes/typo":              {"Bundle classes/typo on Cluster team-a/prod"},
	} {
		out := must(t, "trace", name, "prod", "-f", file)
		var got []string
		for line := range strings.Lines(out) {
			if strings.Contains(line, " on Cluster ") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		if name == "elsewhere" && !strings.Contains(out, "HelmChartProxy team-a/elsewhere has no Bundle for the Cluster") {
			t.Errorf("%s", out)
		}
	}
	if _, err := muster(t, "trace", "helmchartproxy/typo", "prod", "-f", file); err == nil || !strings.Contains(err.Error(), `HelmChartProxy "typo" does not exist`) {
		t.Errorf("a HelmChartProxy that does not exist: %v", err)
	}
	out, _, err := fed(t, "", "__complete", "trace", "-f", file, "")
	if err != nil || !strings.Contains(out, "team-a/cni\n") || !strings.Contains(out, "classes/cni\n") || strings.Contains(out, "hcp-") {
		t.Errorf("completions: %v: %s", err, out)
	}
}
