package images

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/sbom"
	"github.com/muster-fleet/muster/hack/release/source"
)

// A program that calls other servers finds public CAs where Go looks for them.
func TestRoots(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	src := &source.Source{Version: "v1.2.3", Date: time.Unix(1e9, 0)}
	program := programs.Program{Name: "caller", Roots: true}
	layer, err := layer(src, program, binary)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(reader)
	var names []string
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		if !header.ModTime.Equal(src.Date) || header.Uid != 0 || header.Mode&0o222 != 0 && header.Typeflag != tar.TypeDir {
			t.Errorf("%s is of %s, user %d, mode %o", header.Name, header.ModTime, header.Uid, header.Mode)
		}
		if header.Name == rootsPath {
			content, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			if count := strings.Count(string(content), "BEGIN CERTIFICATE"); count < 50 || !x509.NewCertPool().AppendCertsFromPEM(content) {
				t.Errorf("%d roots in %s", count, rootsPath)
			}
		}
	}
	if diff := cmp.Diff([]string{"etc/", "etc/ssl/", "etc/ssl/certs/", rootsPath, "caller"}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	// The SBOM has them, too; in a test, Go does not record their version.
	bom, err := sbom.Of(src, program, "sha256:abc", map[string]string{"amd64": binary})
	if err != nil || !strings.Contains(string(bom), `"purl": "pkg:golang/golang.org/x/crypto/x509roots/fallback@`) {
		t.Errorf("the SBOM lacks the roots: %v", err)
	}
}

// An image has all architectures for which there are binaries, always in the same order, and its SBOM
// describes each. `make test` builds only one.
func TestArchitectures(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	src := &source.Source{Version: "v1.2.3", Date: time.Unix(1e9, 0)}
	binaries := map[string]string{}
	for _, arch := range programs.Platforms {
		binaries[arch] = binary
	}
	made := map[string]bool{}
	for range 3 {
		index, err := index(src, programs.All[0], binaries)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var platforms []string
		for _, image := range manifest.Manifests {
			platforms = append(platforms, image.Platform.String())
		}
		if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
			t.Fatalf("platforms (-want +got):\n%s", diff)
		}
		dir := t.TempDir()
		if err := describe(src, programs.All[0], index, binaries, dir); err != nil {
			t.Fatal(err)
		}
		bom, err := os.ReadFile(filepath.Join(dir, sbom.File(programs.All[0])))
		if err != nil {
			t.Fatal(err)
		}
		for _, platform := range platforms {
			if !strings.Contains(string(bom), `"for `+platform+`"`) {
				t.Errorf("the SBOM lacks %s", platform)
			}
		}
		made[string(bom)] = true // It contains the digest of the image.
	}
	if len(made) != 1 {
		t.Errorf("%d different images or SBOMs of the same binaries", len(made))
	}
}

// Images that were never built cannot be pushed.
func TestRead(t *testing.T) {
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "run make images first") {
		t.Errorf("no layout: %v", err)
	}
}
