package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Push copies an image with all its platforms to a registry such as ghcr.io/muster-fleet, and returns its
// name there, with tag and digest. It uses the credentials from a login with docker, podman or crane.
func Push(ctx context.Context, image Image, registry string) (string, error) {
	ref, err := name.NewTag(image.Name(registry) + ":" + image.Tag)
	if err != nil {
		return "", fmt.Errorf("REGISTRY=%s: %w", registry, err)
	}
	if err := remote.WriteIndex(ref, image.Index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return "", fmt.Errorf("pushing %s: %w", ref, err)
	}
	return ref.String() + "@" + image.Digest.String(), nil
}

// Pull pulls an image by its name, like a node, and writes its program for this machine's architecture into
// a folder.
func Pull(ctx context.Context, image, folder string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", err
	}
	pulled, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return "", fmt.Errorf("pulling %s: %w", ref, err)
	}
	config, err := pulled.ConfigFile()
	if err != nil {
		return "", err
	}
	if len(config.Config.Entrypoint) != 1 {
		return "", fmt.Errorf("%s: the entrypoint is %q, not one program", ref, config.Config.Entrypoint)
	}
	program := config.Config.Entrypoint[0]
	content := mutate.Extract(pulled)
	path, err := extract(content, program, folder)
	if err := errors.Join(err, content.Close()); err != nil {
		return "", fmt.Errorf("%s: %w", ref, err)
	}
	return path, nil
}

// extract writes the program out of an archive.
func extract(content io.Reader, program, folder string) (string, error) {
	files := tar.NewReader(content)
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("there is no %s in it", program)
		}
		if err != nil {
			return "", err
		}
		if "/"+header.Name == program {
			return write(filepath.Join(folder, filepath.Base(program)), files)
		}
	}
}

// write makes an executable file.
func write(path string, content io.Reader) (string, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(file, content)
	return path, errors.Join(err, file.Close())
}
