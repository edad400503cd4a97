package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/test/stack"
)

// formerVariable names the revision that TestUpgrade upgrades from.
const formerVariable = "MUSTER_UPGRADE_FROM"

// revision is a build of Muster at another commit.
type revision struct {
	// manifests is the directory of its default kustomization.
	manifests string
	// binaries maps the names of its commands to their programs.
	binaries map[string]string
}

// former is the revision that TestUpgrade starts from; nil if the variable is not set.
var former *revision

// takeFormer extracts the commit that the variable names into dir, builds it there, and makes
// the stack install it first.
func takeFormer(options *stack.Options, dir string) error {
	name := os.Getenv(formerVariable)
	if name == "" {
		return nil
	}
	root, err := stack.RepoRoot()
	if err != nil {
		return err
	}
	if err := run(root, "bash", "-euo", "pipefail", "-c", `git archive "$0" | tar -x -C "$1"`, name, dir); err != nil {
		return err
	}
	// The stack builds this work tree with the same settings.
	if err := run(dir, "env", "CGO_ENABLED=0", "GOWORK=off", "go", "build", "-buildvcs=false", "-o", "bin/", "./cmd/..."); err != nil {
		return err
	}
	programs, err := filepath.Glob(filepath.Join(dir, "bin", "*"))
	if err != nil {
		return err
	}
	former = &revision{manifests: filepath.Join(dir, "manifests", "default"), binaries: map[string]string{}}
	for _, program := range programs {
		former.binaries[filepath.Base(program)] = program
	}
	options.Manifests, options.Binaries = former.manifests, former.binaries
	return nil
}

func run(dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
