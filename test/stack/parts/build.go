// Package parts builds what a stack runs: the programs that modules under test/parts pin,
// Muster's own, and the CRDs and webhook configurations that come with them.
package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// Tools are the built programs and rendered manifests a stack runs from.
type Tools struct {
	// Root is the work tree.
	Root string
	// Bins are the paths of programs by their names.
	Bins map[string]string
	// Manifests holds the CRDs and webhook configurations taken from the modules.
	Manifests string
}

// Bin returns the path of a built program.
func (t *Tools) Bin(name string) string { return t.Bins[name] }

// Build builds the programs of these modules, each once: results are kept under
// .cache/parts by a key over everything that goes into them. It takes a file lock,
// so that two builds beside each other do the work once.
func Build(ctx context.Context, root string, modules []Module, progress io.Writer) (*Tools, error) {
	parts := filepath.Join(root, ".cache", "parts")
	unlock, err := files.Lock(filepath.Join(parts, "lock"), func() {
		fmt.Fprintln(progress, "build: waiting for another build to finish")
	})
	if err != nil {
		return nil, err
	}
	defer unlock()

	tools := &Tools{Root: root, Bins: map[string]string{}}
	for _, module := range modules {
		bin, err := buildModule(ctx, root, module, progress)
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", module.name, err)
		}
		for _, p := range module.programs {
			tools.Bins[p.name] = filepath.Join(bin, p.name)
		}
	}
	if tools.Manifests, err = renderManifests(ctx, tools, progress); err != nil {
		return nil, fmt.Errorf("render manifests: %w", err)
	}
	return tools, nil
}

// BuildMuster builds Muster's own commands and adds them to the tools. It always
// asks Go, which knows best whether anything changed.
func (t *Tools) BuildMuster(ctx context.Context, progress io.Writer) error {
	bin := filepath.Join(t.Root, ".cache", "bin")
	unlock, err := files.Lock(filepath.Join(bin, "lock"), func() {})
	if err != nil {
		return err
	}
	defer unlock()
	commands, err := filepath.Glob(filepath.Join(t.Root, "cmd", "*", "main.go"))
	if err != nil {
		return err
	}
	if len(commands) == 0 {
		return fmt.Errorf("there is no command under %s", filepath.Join(t.Root, "cmd"))
	}
	begin := time.Now()
	for _, main := range commands {
		name := filepath.Base(filepath.Dir(main))
		out := filepath.Join(bin, name)
		if err := t.Compile(ctx, "./cmd/"+name, out); err != nil {
			return err
		}
		t.Bins[name] = out
	}
	fmt.Fprintf(progress, "build: Muster's commands (%s)\n", poll.Since(begin))
	return nil
}

// Compile builds one package of the work tree.
func (t *Tools) Compile(ctx context.Context, pkg, out string) error {
	return goBuild(ctx, t.Root, "", out, pkg)
}

func buildModule(ctx context.Context, root string, module Module, progress io.Writer) (string, error) {
	dir := filepath.Join(root, "test", "parts", module.name)
	key, err := moduleKey(dir, module)
	if err != nil {
		return "", err
	}
	home := filepath.Join(root, ".cache", "parts", module.name+"-"+key)
	bin := filepath.Join(home, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	if err := forgetUnused(home, module.name); err != nil {
		return "", err
	}
	for _, p := range module.programs {
		out := filepath.Join(bin, p.name)
		if _, err := os.Stat(out); err == nil {
			continue
		}
		fmt.Fprintf(progress, "build: %s ...\n", p.name)
		begin := time.Now()
		var flags []string
		if len(p.patches) > 0 {
			modfile, err := patchModules(ctx, root, module.name, filepath.Join(home, p.name+"-patched"), p.patches)
			if err != nil {
				return "", err
			}
			flags = append(flags, "-modfile="+modfile)
		}
		// Into another name first: an interrupted link must not look finished.
		if err := goBuild(ctx, dir, module.ldflags, out+".part", p.pkg, flags...); err != nil {
			return "", err
		}
		if err := os.Rename(out+".part", out); err != nil {
			return "", err
		}
		fmt.Fprintf(progress, "build: %s (%s)\n", p.name, poll.Since(begin))
	}
	return bin, nil
}

func goBuild(ctx context.Context, dir, ldflags, out, pkg string, flags ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-ldflags=" + ldflags, "-o", out}, flags...)
	_, err := runGo(ctx, dir, append(args, pkg)...)
	return err
}

// forgetUnused marks what is used now and removes builds of the module that nobody has
// used for weeks: they are large, and every change of a version leaves one.
func forgetUnused(home, module string) error {
	const weeks = 4 * 7 * 24 * time.Hour
	now := time.Now()
	if err := os.Chtimes(home, now, now); err != nil {
		return err
	}
	others, err := filepath.Glob(filepath.Join(filepath.Dir(home), module+"-*"))
	if err != nil {
		return err
	}
	for _, other := range others {
		if info, err := os.Stat(other); err == nil && now.Sub(info.ModTime()) > weeks {
			if err := os.RemoveAll(other); err != nil {
				return err
			}
		}
	}
	return nil
}

// runGo runs the go command in dir. A workspace or flags from outside would build
// something else than what the module pins.
func runGo(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, process.LastLines(stderr.String(), 30))
	}
	return stdout.Bytes(), nil
}

// moduleKey is a digest of everything that decides what a module's programs are.
func moduleKey(dir string, module Module) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, module.ldflags, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(hash, "%v\n", module.programs)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		fmt.Fprintf(hash, "%s %x\n", rel, sha256.Sum256(content))
		return err
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil))[:12], nil
}
