package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/test/stack"
)

// revision is Muster as it was: its programs, built from its own sources, and its manifests.
type revision struct {
	// commit is its full name, dir where its sources are.
	commit, dir string
	binaries    map[string]string
}

// manifests is the kustomization that it is installed with.
func (r *revision) manifests() string { return filepath.Join(r.dir, "manifests", "default") }

// buildRevision takes the files of any revision that git knows to .dev, and builds there.
// It needs nothing of that revision but its commands and manifests: what measures is ours.
func buildRevision(ctx context.Context, name string) (*revision, error) {
	root, err := stack.RepoRoot()
	if err != nil {
		return nil, err
	}
	commit, err := output(ctx, root, nil, "git", "rev-parse", "--verify", "--end-of-options", name+"^{commit}")
	if err != nil {
		return nil, err
	}
	r := &revision{commit: commit, binaries: map[string]string{}}
	r.dir = filepath.Join(root, ".dev", "revisions", commit[:12])
	// Left from an earlier run, there may be files that it does not have.
	if err := os.RemoveAll(r.dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	// An index of its own: the one of the work tree stays as it is.
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(r.dir, ".index")}
	for _, args := range [][]string{{"read-tree", commit}, {"checkout-index", "--all", "--prefix=" + r.dir + "/"}} {
		if _, err := output(ctx, root, index, "git", args...); err != nil {
			return nil, err
		}
	}
	commands, err := filepath.Glob(filepath.Join(r.dir, "cmd", "*", "main.go"))
	if err != nil {
		return nil, err
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("revision %s has no commands", name)
	}
	for _, main := range commands {
		name := filepath.Base(filepath.Dir(main))
		r.binaries[name] = filepath.Join(r.dir, "bin", name)
		// As the stack builds those of the work tree.
		if _, err := output(ctx, r.dir, []string{"CGO_ENABLED=0", "GOWORK=off"},
			"go", "build", "-buildvcs=false", "-o", r.binaries[name], "./cmd/"+name); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(stdout)), nil
}
