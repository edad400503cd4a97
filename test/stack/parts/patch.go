package parts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-fleet/muster/test/stack/files"
)

// patch replaces text in one file of a pinned module while it is compiled. It is
// for what cannot be configured and would keep two stacks from one machine.
type patch struct {
	module string
	file   string
	// replace maps what must occur in the file to what takes its place.
	replace map[string]string
}

// inMemoryListens binds the in-memory provider's servers to its own address (POD_IP),
// which it only writes into kubeconfigs, instead of to all: ports are fixed.
var inMemoryListens = patch{
	module: "sigs.k8s.io/cluster-api/test",
	file:   "infrastructure/inmemory/pkg/server/mux.go",
	replace: map[string]string{
		`net.Listen("tcp", fmt.Sprintf(":%d", wcl.Port()))`:        `net.Listen("tcp", net.JoinHostPort(m.host, fmt.Sprint(wcl.Port())))`,
		`net.Listen("tcp", fmt.Sprintf(":%d", options.DebugPort))`: `net.Listen("tcp", net.JoinHostPort(m.host, fmt.Sprint(options.DebugPort)))`,
	},
}

// patchModules copies the modules concerned, patches the copies, and returns a module
// file that builds with them in place of the originals.
func patchModules(ctx context.Context, root, part, out string, patches []patch) (string, error) {
	from := filepath.Join(root, "test", "parts", part)
	if err := os.RemoveAll(out); err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	modfile, err := os.ReadFile(filepath.Join(from, "go.mod"))
	if err != nil {
		return "", err
	}
	for i, p := range patches {
		copied := filepath.Join(out, fmt.Sprintf("module-%d", i))
		if err := p.apply(ctx, root, part, copied); err != nil {
			return "", err
		}
		modfile = fmt.Appendf(modfile, "\nreplace %s => %s\n", p.module, copied)
	}
	sums, err := os.ReadFile(filepath.Join(from, "go.sum"))
	if err != nil {
		return "", err
	}
	if err := files.WriteAtomically(filepath.Join(out, "go.sum"), sums); err != nil {
		return "", err
	}
	path := filepath.Join(out, "go.mod")
	return path, files.WriteAtomically(path, modfile)
}

func (p patch) apply(ctx context.Context, root, part, to string) error {
	dir, err := moduleDir(ctx, root, part, p.module)
	if err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		return err
	}
	file := filepath.Join(to, filepath.FromSlash(p.file))
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(content)
	for before, after := range p.replace {
		if !strings.Contains(text, before) {
			return fmt.Errorf("%s of %s does not hold %q any more", p.file, p.module, before)
		}
		text = strings.ReplaceAll(text, before, after)
	}
	return files.WriteAtomically(file, []byte(text))
}
