// Package revision builds Muster as it was at another commit of its history.
package revision

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/files"
)

// Revision is Muster as it was: its programs, built from its own sources, and its manifests.
type Revision struct {
	// Commit is its full name, Dir where its sources are.
	Commit, Dir string
	// Binaries are its programs by the names of their commands.
	Binaries map[string]string
}

// Manifests is the kustomization that it is installed with.
func (r *Revision) Manifests() string { return filepath.Join(r.Dir, "manifests", "default") }

// Build takes the files of any revision that git knows to .dev, and builds there. It
// needs nothing of that revision but its commands and manifests: what tests is ours.
func Build(ctx context.Context, name string) (*Revision, error) {
	root, err := stack.RepoRoot()
	if err != nil {
		return nil, err
	}
	commit, err := output(ctx, root, nil, "git", "rev-parse", "--verify", "--end-of-options", name+"^{commit}")
	if err != nil {
		return nil, err
	}
	r := &Revision{Commit: commit, Binaries: map[string]string{}}
	r.Dir = filepath.Join(root, ".dev", "revisions", commit[:12])
	unlock, err := files.Lock(r.Dir+".lock", func() {})
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.checkOut(ctx, root); err != nil {
		return nil, err
	}
	commands, err := filepath.Glob(filepath.Join(r.Dir, "cmd", "*", "main.go"))
	if err != nil {
		return nil, err
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("revision %s has no commands", name)
	}
	for _, main := range commands {
		name := filepath.Base(filepath.Dir(main))
		if r.Binaries[name], err = r.Program(ctx, "./cmd/"+name); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// checkOut takes the files of the commit to their directory, unless they are there: others
// may be running what was built of them.
func (r *Revision) checkOut(ctx context.Context, root string) error {
	complete := filepath.Join(r.Dir, ".complete")
	if files.Exists(complete) {
		return nil
	}
	if err := os.RemoveAll(r.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return err
	}
	// An index of its own: the one of the work tree stays as it is.
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(r.Dir, ".index")}
	for _, args := range [][]string{{"read-tree", r.Commit}, {"checkout-index", "--all", "--prefix=" + r.Dir + "/"}} {
		if _, err := output(ctx, root, index, "git", args...); err != nil {
			return err
		}
	}
	return os.WriteFile(complete, nil, 0o600)
}

// Program builds a command among the revision's sources, and returns its path.
func (r *Revision) Program(ctx context.Context, command string) (string, error) {
	binary := filepath.Join(r.Dir, "bin", filepath.Base(command))
	// As the stack builds those of the work tree.
	_, err := output(ctx, r.Dir, []string{"CGO_ENABLED=0", "GOWORK=off"}, "go", "build", "-buildvcs=false", "-o", binary, command)
	return binary, err
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
