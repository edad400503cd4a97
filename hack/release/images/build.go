// Package images builds Muster's images: nothing but a program in one layer, for several
// platforms, as an OCI layout on disk. It needs neither a container runtime nor a base
// image, and the same sources give the same digests.
package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/source"
)

const versionPackage = source.Module + "/internal/version"

// compile builds all programs for one architecture into a folder.
func compile(ctx context.Context, src *source.Source, arch, folder string, progress io.Writer) error {
	begin := time.Now()
	ldflags := fmt.Sprintf("-s -w -X=%[1]s.version=%[2]s -X=%[1]s.revision=%[3]s -X=%[1]s.date=%[4]s",
		versionPackage, src.Version, src.Revision, src.Date.Format(time.RFC3339))
	// -trimpath: where it is built must not show. -buildvcs=false: neither must how git
	// happens to see the work tree; what it says is linked in instead.
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=" + ldflags, "-o", folder + string(filepath.Separator)}
	for _, program := range programs.All {
		args = append(args, "./cmd/"+program.Name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = src.Root
	// What would change the bytes must not come from outside.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs for %s: %w\n%s", arch, err, out)
	}
	fmt.Fprintf(progress, "built %d programs for linux/%s (%s)\n", len(programs.All), arch, time.Since(begin).Round(time.Second/10))
	return nil
}
