package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/sbom"
	"github.com/muster-fleet/muster/hack/release/source"
)

const (
	// user is an arbitrary number: pods say runAsNonRoot, which needs one.
	user = "65532:65532"
	// rootsPath is the first file in which Go's crypto/x509 looks for CAs.
	rootsPath = "etc/ssl/certs/ca-certificates.crt"
)

// labels returns the labels that registries and scanners show.
func labels(src *source.Source, program programs.Program) map[string]string {
	return map[string]string{
		"org.opencontainers.image.created":     src.Date.Format(time.RFC3339),
		"org.opencontainers.image.description": program.Description,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.revision":    src.Revision,
		"org.opencontainers.image.source":      "https://" + source.Module,
		"org.opencontainers.image.title":       program.Image(),
		"org.opencontainers.image.version":     src.Version,
	}
}

// image returns a program's image for one architecture.
func image(src *source.Source, program programs.Program, arch, binary string) (v1.Image, error) {
	layer, err := layer(src, program, binary)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: src.Date}, CreatedBy: "make images", Comment: program.Path()},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created = v1.Time{Time: src.Date}
	config.OS, config.Architecture = "linux", arch
	config.Config = v1.Config{User: user, WorkingDir: "/", Entrypoint: []string{program.Path()}, Labels: labels(src, program)}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, labels(src, program)).(v1.Image), nil
}

// index returns a program's image for several architectures; binaries are its files by architecture.
func index(src *source.Source, program programs.Program, binaries map[string]string) (v1.ImageIndex, error) {
	result := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range slices.Sorted(maps.Keys(binaries)) {
		image, err := image(src, program, arch, binaries[arch])
		if err != nil {
			return nil, fmt.Errorf("image %s for %s: %w", program.Image(), arch, err)
		}
		result = mutate.AppendManifests(result, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return mutate.Annotations(result, labels(src, program)).(v1.ImageIndex), nil
}

// layer has the program and, if it needs them, the certificates of public CAs.
func layer(src *source.Source, program programs.Program, binary string) (v1.Layer, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	add := func(header tar.Header, content []byte) error {
		header.ModTime, header.Size, header.Format = src.Date, int64(len(content)), tar.FormatPAX
		if err := writer.WriteHeader(&header); err != nil {
			return err
		}
		_, err := writer.Write(content)
		return err
	}
	if program.Roots {
		for _, folder := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/"} {
			if err := add(tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: 0o755}, nil); err != nil {
				return nil, err
			}
		}
		if err := add(tar.Header{Typeflag: tar.TypeReg, Name: rootsPath, Mode: 0o444}, roots()); err != nil {
			return nil, err
		}
	}
	if err := add(tar.Header{Typeflag: tar.TypeReg, Name: program.Path()[1:], Mode: 0o555}, content); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching)
}

// roots returns the CAs that Mozilla trusts, except those that it trusts with constraints, which a file of
// certificates cannot express.
func roots() []byte {
	var file bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// Writing to a buffer never fails.
			_ = pem.Encode(&file, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return file.Bytes()
}

// Folders under dist/.
const (
	LayoutFolder = "images"
	SBOMFolder   = "sbom"
)

// Names of an image in a layout: the first is the OCI's, the second the one that containerd uses when it
// imports an image.
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

// Name returns the image's name in a registry, without a tag.
func (i Image) Name(registry string) string { return registry + "/" + i.Program.Image() }

// Build builds all images for these architectures into dist/images, as one OCI layout, and writes their
// SBOMs into dist/sbom. It replaces both folders.
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
			binaries[arch] = filepath.Join(scratch, arch, program.Built())
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
