package main

import (
	"os"
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
		if lines := strings.Count(help, "\n"); lines > 27 || !strings.Contains(help, "\n  "+name+" COMMAND") || strings.Contains(help, "--kubeconfig string") {
			t.Errorf("%s: %d lines:\n%s", path, lines, help)
		}
		for _, command := range []string{"tree", "trace", "check", "view", "lint", "render", "rollout", "plan", "audit", "agent-manifest"} {
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
		{"rollout", "promote", "a", "--approval="}, {"rollout", "retry"},
	} {
		if _, err := muster(t, args...); program.ExitCode(err) != 2 {
			t.Errorf("%q: %v", args, err)
		}
	}
}
