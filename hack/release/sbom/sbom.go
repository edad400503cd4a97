// Package sbom describes the contents of an image, as CycloneDX: its programs, and the modules that Go
// recorded in the binaries when it linked them, and nothing else.
package sbom

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/source"
)

// rootsModule is the module from which the CAs in an image come.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// File returns the name of a program's SBOM.
func File(program programs.Program) string { return program.Image() + ".cdx.json" }

// Of describes the image of a program. binaries has its files by architecture.
func Of(src *source.Source, program programs.Program, digest string, binaries map[string]string) ([]byte, error) {
	image := cdx.Component{
		Type:       cdx.ComponentTypeContainer,
		Name:       programs.Registry + "/" + program.Image(),
		Version:    src.Version,
		PackageURL: "pkg:oci/" + program.Image() + "@" + url.QueryEscape(digest) + "?repository_url=" + programs.Registry + "/" + program.Image() + "&tag=" + src.Version,
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	image.BOMRef = image.PackageURL
	contents := contents{src: src, components: map[string]cdx.Component{}, uses: map[string][]string{}}
	for _, arch := range slices.Sorted(maps.Keys(binaries)) {
		binary, err := contents.add(program, arch, binaries[arch])
		if err != nil {
			return nil, err
		}
		contents.uses[image.BOMRef] = append(contents.uses[image.BOMRef], binary)
	}
	if program.Roots {
		contents.uses[image.BOMRef] = append(contents.uses[image.BOMRef], contents.module(roots(), cdx.ComponentTypeData))
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(digest)
	bom.Metadata = &cdx.Metadata{Timestamp: src.Date.Format(time.RFC3339), Component: &image}
	bom.Components, bom.Dependencies = contents.sorted()
	var text bytes.Buffer
	err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, cdx.SpecVersion1_6)
	return text.Bytes(), err
}

// serial returns a UUID derived from the digest: a random one would differ each time.
func serial(digest string) string {
	sum := sha256.Sum256([]byte(digest))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8: custom
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// contents has the components of an image by reference, and their dependencies.
type contents struct {
	src        *source.Source
	components map[string]cdx.Component
	uses       map[string][]string
}

// add adds a binary and all modules that Go recorded in it.
func (c *contents) add(program programs.Program, arch, path string) (string, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	ref := "file:" + program.Path() + "#linux/" + arch
	c.components[ref] = cdx.Component{
		BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: program.Name, Version: c.src.Version, Description: "for linux/" + arch,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}
	main := info.Main
	main.Version = c.src.Version // Go calls a work tree "(devel)".
	uses := []string{
		c.module(&main, cdx.ComponentTypeLibrary),
		c.module(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}, cdx.ComponentTypeLibrary),
	}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		uses = append(uses, c.module(module, cdx.ComponentTypeLibrary))
	}
	c.uses[ref] = uses
	return ref, nil
}

// module adds a module, and returns the reference to it.
func (c *contents) module(module *debug.Module, kind cdx.ComponentType) string {
	ref := PackageURL(module.Path, module.Version)
	component := cdx.Component{BOMRef: ref, Type: kind, Name: module.Path, Version: module.Version, PackageURL: ref}
	if module.Sum != "" {
		// Not among the hashes, because it is the hash of a list of files, not of one file.
		component.Properties = &[]cdx.Property{{Name: "go:sum", Value: module.Sum}}
	}
	c.components[ref] = component
	return ref
}

func (c *contents) sorted() (*[]cdx.Component, *[]cdx.Dependency) {
	var components []cdx.Component
	for _, ref := range slices.Sorted(maps.Keys(c.components)) {
		components = append(components, c.components[ref])
	}
	var dependencies []cdx.Dependency
	for _, ref := range slices.Sorted(maps.Keys(c.uses)) {
		uses := slices.Compact(slices.Sorted(slices.Values(c.uses[ref])))
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &uses})
	}
	return &components, &dependencies
}

// PackageURL returns the name of a module's version in scanners' databases.
func PackageURL(path, version string) string {
	return "pkg:golang/" + path + "@" + url.QueryEscape(version)
}

// roots returns the module from which this program took the CAs.
func roots() *debug.Module {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if module.Path == rootsModule {
				return module
			}
		}
	}
	return &debug.Module{Path: rootsModule}
}
