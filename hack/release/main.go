// Command release builds everything that Muster ships: images, and the other assets of a release. The
// Makefile calls it: make images, make push-images, make release, make test-images.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/muster-fleet/muster/hack/release/assets"
	"github.com/muster-fleet/muster/hack/release/images"
	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/source"
)

const usage = `say what to do: release COMMAND [FLAGS]
  images    build the images into dist/images, and their SBOMs into dist/sbom
  push      push the images of dist/images to a registry
  pull      pull these images from there, and take this machine's programs out of them
  registry  serve a registry in memory until it is stopped, for tests
  assets    make everything that a release has, in dist/release`

type options struct {
	root, version, registry, platforms, into, announce string
	isTrial                                            bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, options) error{
		"images": buildImages, "push": push, "pull": pull, "registry": serve, "assets": makeAssets,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New(usage)
	}
	var o options
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.root, "root", "../..", "The work tree.")
	flags.StringVar(&o.version, "version", "", "The version, v0.1.0; for images that of the manifests if empty.")
	flags.StringVar(&o.platforms, "platforms", "", "The platforms of images, linux/amd64,linux/arm64; all if empty.")
	flags.StringVar(&o.registry, "registry", "", "The registry, with what precedes the names of the images: ghcr.io/muster-fleet.")
	flags.StringVar(&o.into, "into", "", "The folder for what is pulled.")
	flags.StringVar(&o.announce, "announce", "", "The file to write the address of the registry to.")
	flags.BoolVar(&o.isTrial, "trial", false, "Of the assets, build the images for this architecture and the plugin for this machine only, to try out a release.")
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if rest := flags.Args(); len(rest) > 0 {
		return fmt.Errorf("%s takes no arguments, got %q", args[0], rest)
	}
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	return commands[args[0]](ctx, o)
}

func buildImages(ctx context.Context, o options) error {
	platforms, err := architectures(o.platforms)
	if err != nil {
		return err
	}
	src, err := source.Read(ctx, o.root, cmp.Or(o.version, programs.Version))
	if err != nil {
		return err
	}
	built, err := images.Build(ctx, src, filepath.Join(o.root, "dist"), platforms, os.Stderr)
	if err != nil {
		return err
	}
	for _, image := range built {
		fmt.Printf("%s:%s@%s\n", image.Program.Image(), image.Tag, image.Digest)
	}
	return nil
}

// architectures returns those of a list of platforms; all if it is empty.
func architectures(platforms string) (result []string, err error) {
	if platforms == "" {
		return programs.Platforms, nil
	}
	for platform := range strings.SplitSeq(platforms, ",") {
		arch, isLinux := strings.CutPrefix(platform, "linux/")
		if !isLinux || !slices.Contains(programs.Platforms, arch) {
			return nil, fmt.Errorf("no image is built for %q: give PLATFORMS=linux/amd64, linux/arm64 or both with a comma", platform)
		}
		result = append(result, arch)
	}
	return result, nil
}

// built returns the images of an earlier build.
func built(o options) ([]images.Image, error) {
	if o.registry == "" {
		return nil, errors.New("no registry is given: say where to push the images, for example REGISTRY=registry.example.com/muster")
	}
	return images.Read(filepath.Join(o.root, "dist", images.LayoutFolder))
}

func push(ctx context.Context, o options) error {
	all, err := built(o)
	if err != nil {
		return err
	}
	for _, image := range all {
		pushed, err := images.Push(ctx, image, o.registry)
		if err != nil {
			return err
		}
		fmt.Println(pushed)
	}
	fmt.Fprint(os.Stderr, instructions(o.registry, all))
	return nil
}

func pull(ctx context.Context, o options) error {
	all, err := built(o)
	if err != nil {
		return err
	}
	if o.into == "" {
		return errors.New("no folder is given: say -into=DIR")
	}
	for _, image := range all {
		path, err := images.Pull(ctx, image.Name(o.registry)+"@"+image.Digest.String(), o.into)
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}

func serve(ctx context.Context, o options) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.announce+".new", []byte(listener.Addr().String()), 0o644); err != nil {
		return err
	}
	if err := os.Rename(o.announce+".new", o.announce); err != nil {
		return err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func makeAssets(ctx context.Context, o options) error {
	// The version first, because that needs no work tree.
	if err := source.CheckVersion(o.version); err != nil {
		return err
	}
	src, err := source.Read(ctx, o.root, o.version)
	if err != nil {
		return err
	}
	platforms, machines := programs.Platforms, assets.Machines
	if o.isTrial {
		platforms, machines = []string{runtime.GOARCH}, []assets.Machine{{System: runtime.GOOS, Arch: runtime.GOARCH}}
	}
	return assets.Release(ctx, src, platforms, machines, os.Stderr)
}
