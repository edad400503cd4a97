// Package images builds Muster's images: one layer with a program, for several platforms, as an OCI layout
// on disk. It needs neither a container runtime nor a base image, and the same sources give the same
// digests.
package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/source"
)

const versionPackage = source.Module + "/internal/version"

// compile builds all programs for one architecture into a folder.
func compile(ctx context.Context, src *source.Source, arch, folder string, progress io.Writer) error {
	var names []string
	for _, program := range programs.All {
		names = append(names, program.Built())
	}
	return Compile(ctx, src, "linux", arch, folder, names, progress)
}

// Compile builds programs for a platform into a folder: the same bytes everywhere.
func Compile(ctx context.Context, src *source.Source, system, arch, folder string, names []string, progress io.Writer) error {
	begin := time.Now()
	ldflags := fmt.Sprintf("-s -w -X=%[1]s.version=%[2]s -X=%[1]s.revision=%[3]s -X=%[1]s.date=%[4]s",
		versionPackage, src.Version, src.Revision, src.Date.Format(time.RFC3339))
	// -trimpath hides where the build ran. -buildvcs=false hides git's view of the work tree; the version is
	// linked in instead.
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=" + ldflags, "-o", folder + string(filepath.Separator)}
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = src.Root
	env, err := environment(ctx, src.Root, system, arch)
	if err != nil {
		return err
	}
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs for %s/%s: %w\n%s", system, arch, err, out)
	}
	fmt.Fprintf(progress, "built %d programs for %s/%s (%s)\n", len(names), system, arch, time.Since(begin).Round(time.Second/10))
	return nil
}

// kept are the settings for the source of modules and the version of Go. A person may have them in the
// environment or in the file of `go env -w`.
var kept = []string{"GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY", "GOINSECURE", "GOVCS", "GOAUTH", "GOMODCACHE", "GOCACHE", "GOTOOLCHAIN"}

// environment returns an environment in which no local configuration changes the bytes. It disables the file
// of `go env -w`, because an empty variable would not override it.
func environment(ctx context.Context, root, system, arch string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"env"}, kept...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := append(os.Environ(), "GOENV=off", "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GO111MODULE=on", "GOEXPERIMENT=", "GOFIPS140=off")
	for i, value := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
		env = append(env, kept[i]+"="+value)
	}
	return env, nil
}
