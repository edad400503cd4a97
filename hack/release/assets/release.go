// Package assets makes everything that a release has: manifests, chart, images, SBOMs, checksums, an archive
// for clusters without a network, and notes. The results depend only on the commit and the version.
package assets

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-fleet/muster/hack/release/images"
	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/sbom"
	"github.com/muster-fleet/muster/hack/release/source"
)

// Check returns an error for a commit that cannot be released, or else the release's notes.
func Check(ctx context.Context, src *source.Source) (string, error) {
	if err := source.CheckVersion(src.Version); err != nil {
		return "", err
	}
	if len(src.Changes) > 0 {
		return "", fmt.Errorf("the work tree holds what no commit does: commit, stash or remove %s, and run make release again", strings.Join(src.Changes, ", "))
	}
	elsewhere, err := src.TagIsElsewhere(ctx)
	if err != nil {
		return "", err
	}
	if elsewhere != "" {
		return "", fmt.Errorf("%s is already the tag of commit %s: check that out, or choose the next version", src.Version, elsewhere)
	}
	changelog, err := os.ReadFile(filepath.Join(src.Root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	return notes(string(changelog), src.Version)
}

// Release makes the assets in dist/release, the images for these Linux architectures, and the plugin for
// these machines. It replaces earlier assets.
func Release(ctx context.Context, src *source.Source, platforms []string, machines []Machine, progress io.Writer) error {
	notes, err := Check(ctx, src)
	if err != nil {
		return err
	}
	dist := filepath.Join(src.Root, "dist")
	// Only files that this commit generates are released.
	channels := exec.CommandContext(ctx, "go", "run", "./hack/channels", "dist")
	channels.Dir, channels.Stderr = src.Root, progress
	if err := channels.Run(); err != nil {
		return fmt.Errorf("generating dist/: %w", err)
	}
	// Checked before the build, because that takes long.
	shipped, err := manifestsAndChart(ctx, src, dist)
	if err != nil {
		return err
	}
	built, err := images.Build(ctx, src, dist, platforms, progress)
	if err != nil {
		return err
	}
	assets, err := withImages(src, dist, shipped, built)
	if err != nil {
		return err
	}
	airgap, err := airgap(src, assets)
	if err != nil {
		return err
	}
	plugin, err := plugin(ctx, src, machines, progress)
	if err != nil {
		return err
	}
	assets = append(assets, airgap, entry{name: "notes.md", content: []byte(notes)})
	assets = append(assets, plugin...)
	assets = append(assets, checksums(assets))
	return write(filepath.Join(dist, "release"), assets, progress)
}

func manifestsAndChart(ctx context.Context, src *source.Source, dist string) ([]entry, error) {
	var entries []entry
	for _, manifest := range manifests {
		content, err := os.ReadFile(filepath.Join(dist, manifest))
		if err != nil {
			return nil, err
		}
		if manifest == clusterctlMetadata {
			err = checkSeries(content, src.Version)
		} else {
			content, err = withVersion(content, src.Version)
		}
		if err == nil && manifest == capiOperator {
			content, err = ofVersion(content, src.Version)
		}
		if err != nil {
			return nil, fmt.Errorf("dist/%s: %w", manifest, err)
		}
		entries = append(entries, entry{name: manifest, content: content})
	}
	name, packed, err := chart(ctx, src)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", chartFolder, err)
	}
	if name != "" {
		entries = append(entries, entry{name: name, content: packed})
	}
	return entries, nil
}

// withImages adds the images, their names with digests, and their SBOMs.
func withImages(src *source.Source, dist string, entries []entry, built []images.Image) ([]entry, error) {
	layout, err := folder(filepath.Join(dist, images.LayoutFolder))
	if err != nil {
		return nil, err
	}
	// Layers are compressed already.
	packed, err := tarball(layout, src.Date, false)
	if err != nil {
		return nil, err
	}
	var list strings.Builder
	entries = slices.Clone(entries)
	for _, image := range built {
		fmt.Fprintf(&list, "%s:%s@%s\n", image.Name(programs.Registry), image.Tag, image.Digest)
		name := sbom.File(image.Program)
		content, err := os.ReadFile(filepath.Join(dist, images.SBOMFolder, name))
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: name, content: content})
	}
	return append(entries,
		entry{name: "muster-images-" + src.Version + ".tar", content: packed},
		entry{name: "images.txt", content: []byte(list.String())}), nil
}

// airgap packs everything into one file, for clusters without a network.
func airgap(src *source.Source, entries []entry) (entry, error) {
	name := "muster-airgap-" + src.Version
	var inside []entry
	for _, e := range append(slices.Clone(entries), checksums(entries)) {
		inside = append(inside, entry{name: name + "/" + e.name, content: e.content})
	}
	packed, err := tarball(inside, src.Date, false)
	return entry{name: name + ".tar", content: packed}, err
}

func write(dir string, entries []entry, progress io.Writer) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.WriteFile(filepath.Join(dir, e.name), e.content, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(progress, "%10d  dist/release/%s\n", len(e.content), e.name)
	}
	return nil
}

var section = regexp.MustCompile(`^## \[v?([^\]]+)\]`)

// notes returns the changelog's section about a version, without its heading: the release page has a title.
func notes(changelog, version string) (string, error) {
	want := strings.TrimPrefix(version, "v")
	var lines []string
	found := false
	for line := range strings.Lines(changelog) {
		if match := section.FindStringSubmatch(line); match != nil {
			if found {
				break
			}
			found = match[1] == want
		} else if found {
			lines = append(lines, line)
		}
	}
	text := strings.TrimSpace(strings.Join(lines, ""))
	switch {
	case !found:
		return "", fmt.Errorf("CHANGELOG.md has no section of %s: put a heading \"## [%s] - YYYY-MM-DD\" below \"## [Unreleased]\", commit that, and run make release again", version, want)
	case text == "":
		return "", fmt.Errorf("the section [%s] of CHANGELOG.md is empty: say what changes for those who use Muster, commit that, and run make release again", want)
	}
	return text + "\n", nil
}
