package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/sbom"
	"github.com/muster-fleet/muster/hack/release/source"
)

// Where things are under dist/.
const (
	LayoutFolder = "images"
	SBOMFolder   = "sbom"
)

// These name an image in a layout: the first is the OCI's, the second what containerd
// goes by when it imports one.
const (
	refName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// Image is an image in a layout.
type Image struct {
	programs.Program
	Tag    string
	Digest v1.Hash
	Index  v1.ImageIndex
}

// Name is the image's name in a registry, without a tag.
func (i Image) Name(registry string) string { return registry + "/" + i.Program.Image() }

// Build builds all images for these architectures into dist/images, as one OCI layout, and
// describes what is in them in dist/sbom. What was there before is replaced as a whole.
func Build(ctx context.Context, src *source.Source, dist string, platforms []string, progress io.Writer) (built []Image, err error) {
	scratch, err := os.MkdirTemp("", "muster-images-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	for _, arch := range platforms {
		if err := compile(ctx, src, arch, filepath.Join(scratch, arch), progress); err != nil {
			return nil, err
		}
	}
	folder, sboms := filepath.Join(dist, LayoutFolder), filepath.Join(dist, SBOMFolder)
	for _, old := range []string{folder, sboms} {
		if err := os.RemoveAll(old); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(sboms, 0o755); err != nil {
		return nil, err
	}
	all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, program := range programs.All {
		binaries := map[string]string{}
		for _, arch := range platforms {
			binaries[arch] = filepath.Join(scratch, arch, program.Name)
		}
		index, err := index(src, program, binaries)
		if err != nil {
			return nil, err
		}
		name := programs.Registry + "/" + program.Image() + ":" + src.Version
		all = mutate.AppendManifests(all, mutate.IndexAddendum{
			Add:        index,
			Descriptor: v1.Descriptor{Annotations: map[string]string{refName: name, containerdName: name}},
		})
		if err := describe(src, program, index, binaries, sboms); err != nil {
			return nil, fmt.Errorf("SBOM of %s: %w", program.Image(), err)
		}
	}
	if _, err := layout.Write(folder, all); err != nil {
		return nil, fmt.Errorf("writing the layout: %w", err)
	}
	return Read(folder)
}

func describe(src *source.Source, program programs.Program, index v1.ImageIndex, binaries map[string]string, folder string) error {
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	bom, err := sbom.Of(src, program, digest.String(), binaries)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, sbom.File(program)), bom, 0o644)
}

// Read returns the images of a layout that Build made.
func Read(folder string) ([]Image, error) {
	all, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return nil, fmt.Errorf("there are no images in %s, run make images first: %w", folder, err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []Image
	for _, program := range programs.All {
		prefix := programs.Registry + "/" + program.Image() + ":"
		for _, descriptor := range manifest.Manifests {
			name := descriptor.Annotations[refName]
			if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
				continue
			}
			index, err := all.ImageIndex(descriptor.Digest)
			if err != nil {
				return nil, err
			}
			found = append(found, Image{Program: program, Tag: name[len(prefix):], Digest: descriptor.Digest, Index: index})
		}
	}
	if len(found) != len(programs.All) {
		return nil, fmt.Errorf("%s holds %d of %d images; run make images again", folder, len(found), len(programs.All))
	}
	return found, nil
}
