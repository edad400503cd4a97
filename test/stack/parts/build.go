package parts

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// Tools are the built programs and rendered manifests that a stack uses.
type Tools struct {
	// Root is the work tree.
	Root string
	// Bins maps names of programs to their paths, including programs that are not built yet.
	Bins map[string]string
	// Manifests holds the CRDs and webhook configurations taken from the modules.
	Manifests string
}

// Bin returns the path of a built program.
func (t *Tools) Bin(name string) string { return t.Bins[name] }

// Build builds the programs of these modules. It keeps the results under .cache/parts by a key over all inputs, so
// it builds each program once. A file lock prevents two parallel builds from doing the same work.
func Build(ctx context.Context, root string, modules []Module, progress io.Writer) (*Tools, error) {
	if Chosen.kube == "" {
		return nil, fmt.Errorf("%s=%s is no set of parts: choose one of %q", choice, os.Getenv(choice), slices.Sorted(maps.Keys(sets)))
	}
	unlock, err := files.Lock(filepath.Join(root, ".cache", "parts", "lock"), func() {
		fmt.Fprintln(progress, "build: waiting for another build to finish")
	})
	if err != nil {
		return nil, err
	}
	defer unlock()
	var missing []*moduleBuild
	tools := &Tools{Root: root, Bins: map[string]string{}}
	for _, module := range all {
		build, err := newModuleBuild(root, module)
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", module.name, err)
		}
		for _, p := range module.programs {
			tools.Bins[p.name] = filepath.Join(build.bin, p.name)
		}
		isWanted := slices.ContainsFunc(modules, func(its Module) bool { return its.name == module.name })
		if isWanted && !files.Exists(build.bin) {
			missing = append(missing, build)
		}
	}
	commands, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	if err != nil {
		return nil, err
	}
	for _, main := range commands {
		name := filepath.Base(filepath.Dir(main))
		tools.Bins[name] = filepath.Join(tools.musterBin(), name)
	}
	defer downloadAhead(ctx, missing)()
	for _, build := range missing {
		if err := build.run(ctx, progress); err != nil {
			return nil, fmt.Errorf("build %s: %w", build.name, err)
		}
	}
	if tools.Manifests, err = renderManifests(ctx, tools, progress); err != nil {
		return nil, fmt.Errorf("render manifests: %w", err)
	}
	return tools, nil
}

func (t *Tools) musterBin() string { return filepath.Join(t.Root, ".cache", "bin") }

// BuildMuster builds Muster's own commands. It always calls Go, which knows best whether anything has changed.
func (t *Tools) BuildMuster(ctx context.Context, progress io.Writer) error {
	bin := t.musterBin()
	unlock, err := files.Lock(filepath.Join(bin, "lock"), func() {})
	if err != nil {
		return err
	}
	defer unlock()
	begin := time.Now()
	if err := goBuild(ctx, progress, t.Root, "-o="+bin+"/", "./cmd/..."); err != nil {
		return err
	}
	fmt.Fprintf(progress, "build: Muster's commands (%s)\n", poll.Since(begin))
	return nil
}

// moduleBuild is a module with the place of its programs.
type moduleBuild struct {
	Module
	source, home, bin string
	packages          []string
}

func newModuleBuild(root string, module Module) (*moduleBuild, error) {
	b := &moduleBuild{Module: module, source: filepath.Join(root, "test", "parts", module.dir)}
	key, err := module.key(root)
	b.home = filepath.Join(root, ".cache", "parts", module.name+"-"+key)
	b.bin = filepath.Join(b.home, "bin")
	for _, p := range module.programs {
		b.packages = append(b.packages, p.pkg)
	}
	return b, err
}

// run builds the programs together, so that Go loads shared packages once, and links one program while it compiles
// the next.
func (b *moduleBuild) run(ctx context.Context, progress io.Writer) error {
	begin := time.Now()
	fmt.Fprintf(progress, "build: %s ...\n", b.name)
	// It builds into another place first, because an interrupted link must not look finished.
	part := b.bin + ".part"
	flags := []string{"-ldflags=-s -w" + b.ldflags, "-o=" + part + "/"}
	for _, pattern := range notInlined {
		flags = append(flags, "-gcflags="+pattern+"=-dwarf=false -l")
	}
	if b.patch != nil {
		modfile, err := b.patch.apply(ctx, b.source, filepath.Join(b.home, "patched"))
		if err != nil {
			return err
		}
		flags = append(flags, "-modfile="+modfile)
	}
	if err := goBuild(ctx, progress, b.source, slices.Concat(flags, b.packages)...); err != nil {
		return err
	}
	for _, p := range b.programs {
		if err := os.Rename(filepath.Join(part, p.builtName()), filepath.Join(part, p.name)); err != nil {
			return err
		}
	}
	fmt.Fprintf(progress, "build: %s (%s)\n", b.name, poll.Since(begin))
	return os.Rename(part, b.bin)
}

// notInlined are packages that only the parts use, a third of all that Go compiles. Without inlining, they compile in
// three quarters of the time. The libraries that decide how fast an API server is keep it.
var notInlined = []string{
	"k8s.io/kubernetes/...", "k8s.io/kubectl/...", "k8s.io/cri-api/...", "github.com/google/cadvisor/...",
	"github.com/rancher/fleet/internal/...", "github.com/google/go-github/...",
	"github.com/cert-manager/cert-manager/internal/...", "github.com/cert-manager/cert-manager/pkg/controller/...",
	"sigs.k8s.io/cluster-api/core/...", "sigs.k8s.io/cluster-api/internal/...", "sigs.k8s.io/cluster-api/test/...",
}

// downloadAhead downloads the sources of the modules after the first, while the first is compiled. If a download
// fails, the build tries it again.
func downloadAhead(ctx context.Context, builds []*moduleBuild) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for _, b := range builds[min(1, len(builds)):] {
			_, _ = runGo(ctx, b.source, append([]string{"list", "-deps"}, b.packages...)...)
		}
	})
	return func() { cancel(); wait.Wait() }
}

// reportEvery is how long a build runs without a message.
const reportEvery = 10 * time.Second

// goBuild runs `go build` and reports its progress regularly.
func goBuild(ctx context.Context, progress io.Writer, dir string, args ...string) error {
	cmd := goCommand(ctx, dir, append([]string{"build", "-v", "-buildvcs=false"}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	logged, downloaded, compiled := time.Now(), 0, 0
	var rest strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "go: downloading "):
			downloaded++
		case !strings.ContainsAny(line, " \t:#"):
			compiled++
		default:
			fmt.Fprintln(&rest, line)
		}
		if time.Since(logged) >= reportEvery {
			logged = time.Now()
			fmt.Fprintf(progress, "build: ... %d modules downloaded, %d packages compiled\n", downloaded, compiled)
		}
	}
	return goError(cmd, cmd.Wait(), rest.String())
}

// runGo runs the go command in dir.
func runGo(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := goCommand(ctx, dir, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	return stdout, goError(cmd, err, stderr.String())
}

// goCommand returns a go command in dir. It ignores a workspace or flags from outside, which would build something
// other than the module pins.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOGC="+compilersGOGC)
	return cmd
}

// compilersGOGC makes the compiler collect its garbage a fourth as often. This saves a sixth of the build time, and
// uses at most 0.7 GiB.
const compilersGOGC = "400"

func goError(cmd *exec.Cmd, err error, stderr string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), cmd.Dir, err, process.LastLines(stderr, 30))
}

// key returns a digest of everything that determines a module's programs.
func (m Module) key(root string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, m.ldflags, runtime.Version(), runtime.GOOS, runtime.GOARCH, m.programs)
	if m.patch != nil {
		fmt.Fprintln(hash, *m.patch)
	}
	var problems []error
	for _, pattern := range []string{"go.*", "*/*.go"} {
		paths, _ := filepath.Glob(filepath.Join(root, "test", "parts", m.dir, pattern))
		for _, path := range paths {
			content, err := os.ReadFile(path)
			problems = append(problems, err)
			fmt.Fprintf(hash, "%s %x\n", filepath.Base(path), sha256.Sum256(content))
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:6]), errors.Join(problems...)
}
