package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/source"
)

const (
	// user is nobody in particular: pods say runAsNonRoot, and need a number for that.
	user = "65532:65532"
	// rootsPath is where Go's crypto/x509 looks first.
	rootsPath = "etc/ssl/certs/ca-certificates.crt"
)

// labels are what registries and scanners show.
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

// image is one program for one architecture.
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

// index is one program for several architectures; binaries are its files by architecture.
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

// layer holds the program and, if it needs them, the roots of the world's CAs.
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

// roots are the CAs that Mozilla trusts, those aside that it trusts only in part, which a
// file of certificates cannot say.
func roots() []byte {
	var file bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// Into a buffer nothing fails.
			_ = pem.Encode(&file, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return file.Bytes()
}
