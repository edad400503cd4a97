package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// checkIndex checks an image in a registry, as a node and as a person see it.
func checkIndex(t *testing.T, image, revision string) {
	t.Helper()
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("%s: %v", image, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, descriptor := range manifest.Manifests {
		platforms = append(platforms, descriptor.Platform.String())
		child, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image, child, descriptor.Platform.Architecture)
	}
	wanted := []string{"linux/amd64", "linux/arm64"}
	if isTrial {
		wanted = []string{"linux/" + runtime.GOARCH}
	}
	if diff := cmp.Diff(wanted, platforms); diff != "" {
		t.Errorf("%s: platforms (-want +got):\n%s", image, diff)
	}
	for label, want := range map[string]string{"revision": revision, "version": version, "source": "https://github.com/muster-fleet/muster", "licenses": "Apache-2.0"} {
		if got := manifest.Annotations["org.opencontainers.image."+label]; got != want {
			t.Errorf("%s: annotation %s is %q, want %q", image, label, got, want)
		}
	}
}

func checkImage(t *testing.T, name string, image v1.Image, arch string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Errorf("%s: %d layers, %v", name, len(layers), err)
	}
	if config.Architecture != arch || config.OS != "linux" || config.Config.User != "65532:65532" || len(config.Config.Entrypoint) != 1 {
		t.Errorf("%s: %s/%s, user %q, entrypoint %q", name, config.OS, config.Architecture, config.Config.User, config.Config.Entrypoint)
	}
	for _, label := range []string{"created", "description", "licenses", "revision", "source", "title", "version"} {
		if config.Config.Labels["org.opencontainers.image."+label] == "" {
			t.Errorf("%s: there is no label %s", name, label)
		}
	}
}

// checkSBOM compares an SBOM with the modules that Go recorded in a binary from the image.
func checkSBOM(t *testing.T, file, binary string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Components []struct {
			Name, Version, PackageURL, Description string
			Hashes                                 []struct{ Content string }
		}
	}
	if err := json.Unmarshal(content, &bom); err != nil {
		t.Fatal(err)
	}
	if err := validSBOM(content); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	if err := validSBOM(bytes.Replace(content, []byte(`"bomFormat": "CycloneDX"`), []byte(`"bomFormat": "SPDX"`), 1)); err == nil {
		t.Errorf("%s: the schema takes anything", file)
	}
	described, hashed := map[string]bool{}, false
	sum, _, _ := strings.Cut(must(t, ".", "sha256sum", binary), " ")
	for _, component := range bom.Components {
		described[component.Name+" "+component.Version] = true
		for _, hash := range component.Hashes {
			hashed = hashed || hash.Content == sum && strings.HasSuffix(component.Description, "/"+runtime.GOARCH)
		}
	}
	if !hashed {
		t.Errorf("%s does not describe %s, sha256 %s", file, binary, sum)
	}
	modules := 0
	for line := range strings.Lines(must(t, ".", "go", "version", "-m", binary)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 3 || fields[0] != "dep" && fields[0] != "=>" && fields[0] != "mod":
			continue
		case fields[0] == "mod":
			fields[2] = version
		}
		modules++
		if !described[fields[1]+" "+fields[2]] {
			t.Errorf("%s lacks %s %s", file, fields[1], fields[2])
		}
	}
	if modules < 10 {
		t.Errorf("go version -m names %d modules of %s only", modules, binary)
	}
	if want := "std " + strings.TrimPrefix(runtime.Version(), "go"); !described[want] {
		t.Errorf("%s lacks %s", file, want)
	}
}
