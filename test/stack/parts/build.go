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
	"slices"
	"strings"
	"sync"
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

	var builds []*moduleBuild
	for _, module := range modules {
		build, err := newModuleBuild(root, module)
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", module.name, err)
		}
		builds = append(builds, build)
	}
	defer downloadAhead(ctx, builds)()
	tools := &Tools{Root: root, Bins: map[string]string{}}
	for _, build := range builds {
		if err := build.run(ctx, progress); err != nil {
			return nil, fmt.Errorf("build %s: %w", build.name, err)
		}
		for _, p := range build.programs {
			tools.Bins[p.name] = filepath.Join(build.bin(), p.name)
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
	if err := goBuild(ctx, progress, t.Root, "", bin+"/", "./cmd/..."); err != nil {
		return err
	}
	for _, main := range commands {
		name := filepath.Base(filepath.Dir(main))
		t.Bins[name] = filepath.Join(bin, name)
	}
	fmt.Fprintf(progress, "build: Muster's commands (%s)\n", poll.Since(begin))
	return nil
}

// moduleBuild is a module of parts and those of its programs that are not there yet.
type moduleBuild struct {
	Module
	root, dir, home string
	missing         []program
}

func newModuleBuild(root string, module Module) (*moduleBuild, error) {
	dir := filepath.Join(root, "test", "parts", module.name)
	key, err := moduleKey(dir, module)
	if err != nil {
		return nil, err
	}
	b := &moduleBuild{Module: module, root: root, dir: dir, home: filepath.Join(root, ".cache", "parts", module.name+"-"+key)}
	if err := os.MkdirAll(b.bin(), 0o755); err != nil {
		return nil, err
	}
	for _, p := range module.programs {
		if !files.Exists(filepath.Join(b.bin(), p.name)) {
			b.missing = append(b.missing, p)
		}
	}
	return b, forgetUnused(b.home, module.name)
}

func (b *moduleBuild) bin() string { return filepath.Join(b.home, "bin") }

func (b *moduleBuild) run(ctx context.Context, progress io.Writer) error {
	var flags []string
	if len(b.missing) > 0 && len(b.patches) > 0 {
		modfile, err := patchModules(ctx, b.root, b.name, filepath.Join(b.home, "patched"), b.patches)
		if err != nil {
			return err
		}
		flags = append(flags, "-modfile="+modfile)
	}
	for _, together := range buildable(b.missing) {
		if err := b.build(ctx, progress, together, flags); err != nil {
			return err
		}
	}
	return nil
}

// downloadAhead downloads what the modules after the first are compiled from: meanwhile
// the first is compiled. What it cannot get, the build asks for again.
func downloadAhead(ctx context.Context, builds []*moduleBuild) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for _, b := range builds[1:] {
			if len(b.missing) > 0 {
				_, _ = runGo(ctx, b.dir, append([]string{"list", "-deps"}, packagesOf(b.missing)...)...)
			}
		}
	})
	return func() { cancel(); wait.Wait() }
}

func packagesOf(programs []program) []string {
	var packages []string
	for _, p := range programs {
		packages = append(packages, p.pkg)
	}
	return packages
}

// buildable divides programs into those that Go can build together: it names a
// program by the last element of its path, and two of Cluster API's share theirs.
func buildable(programs []program) [][]program {
	var groups [][]program
	for _, p := range programs {
		free := slices.IndexFunc(groups, func(group []program) bool {
			return !slices.ContainsFunc(group, func(other program) bool { return other.builtName() == p.builtName() })
		})
		if free < 0 {
			free, groups = len(groups), append(groups, nil)
		}
		groups[free] = append(groups[free], p)
	}
	return groups
}

// build builds programs together, so that Go looks once at what they share, and links
// one while it compiles for the next.
func (b *moduleBuild) build(ctx context.Context, progress io.Writer, programs []program, flags []string) error {
	begin := time.Now()
	var names []string
	for _, p := range programs {
		names = append(names, p.name)
	}
	what := strings.Join(names, ", ")
	fmt.Fprintf(progress, "build: %s ...\n", what)
	// Into another place first: an interrupted link must not look finished.
	part := b.bin() + ".part"
	if err := goBuild(ctx, progress, b.dir, b.ldflags, part+"/", slices.Concat(flags, packagesOf(programs))...); err != nil {
		return err
	}
	for _, p := range programs {
		if err := os.Rename(filepath.Join(part, p.builtName()), filepath.Join(b.bin(), p.name)); err != nil {
			return err
		}
	}
	fmt.Fprintf(progress, "build: %s (%s)\n", what, poll.Since(begin))
	return os.RemoveAll(part)
}

// goBuild builds packages, which flags may precede. It takes out for a folder if that
// ends with a slash.
func goBuild(ctx context.Context, progress io.Writer, dir, ldflags, out string, packages ...string) error {
	args := append([]string{"build", "-v", "-buildvcs=false", "-ldflags=" + ldflags, "-o", out}, packages...)
	report := &buildReport{progress: progress, said: time.Now()}
	cmd := goCommand(ctx, dir, args...)
	cmd.Stderr = report
	if err := cmd.Run(); err != nil {
		return goError(cmd, err, report.rest.String())
	}
	return nil
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

// runGo runs the go command in dir.
func runGo(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := goCommand(ctx, dir, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, goError(cmd, err, stderr.String())
	}
	return stdout.Bytes(), nil
}

// goCommand is the go command in dir. A workspace or flags from outside would build
// something else than what the module pins.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOGC="+compilersGOGC)
	return cmd
}

// compilersGOGC lets the compiler collect its garbage a fourth as often as it would: a
// sixth of the time that a build takes is saved so, at most 0.7 GiB used.
const compilersGOGC = "400"

func goError(cmd *exec.Cmd, err error, stderr string) error {
	return fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), cmd.Dir, err, process.LastLines(stderr, 30))
}

// moduleKey is a digest of everything that decides what a module's programs are.
func moduleKey(dir string, module Module) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, module.ldflags, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintln(hash, module.programs, module.patches)
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

// reportEvery is how long a build goes on in silence.
const reportEvery = 10 * time.Second

// buildReport takes what `go build -v` prints. It counts modules and packages, says now
// and then how far that is, and keeps what else is said.
type buildReport struct {
	progress             io.Writer
	said                 time.Time
	downloaded, compiled int
	line, rest           bytes.Buffer
}

func (r *buildReport) Write(text []byte) (int, error) {
	r.line.Write(text)
	for {
		end := bytes.IndexByte(r.line.Bytes(), '\n')
		if end < 0 {
			return len(text), nil
		}
		r.take(string(r.line.Next(end + 1)))
	}
}

func (r *buildReport) take(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		r.downloaded++
	case !strings.ContainsAny(line, " \t:#"):
		r.compiled++
	default:
		r.rest.WriteString(line)
		return
	}
	if time.Since(r.said) < reportEvery {
		return
	}
	r.said = time.Now()
	fmt.Fprintf(r.progress, "build: ... %d modules downloaded, %d packages compiled\n", r.downloaded, r.compiled)
}
