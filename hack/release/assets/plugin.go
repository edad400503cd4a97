package assets

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/hack/release/images"
	"github.com/muster-fleet/muster/hack/release/programs"
	"github.com/muster-fleet/muster/hack/release/source"
)

// completion is the script that kubectl calls to complete the plugin's arguments.
const completion = "#!/bin/sh\nexec kubectl muster __complete \"$@\"\n"

// k9s has the plugin's commands as plugins for k9s.
//
//go:embed muster.k9s.yaml
var k9s []byte

// Machine is a platform for which a program is built, in Go's words.
type Machine struct{ System, Arch string }

// Machines are the platforms of users.
var Machines = []Machine{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"},
}

// plugin builds the plugin for machines, and the manifest with which krew installs it.
func plugin(ctx context.Context, src *source.Source, machines []Machine, progress io.Writer) ([]entry, error) {
	license, err := os.ReadFile(filepath.Join(src.Root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "muster-plugin-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	var entries []entry
	for _, machine := range machines {
		into := filepath.Join(folder, machine.System+"-"+machine.Arch)
		if err := images.Compile(ctx, src, machine.System, machine.Arch, into, []string{programs.Plugin}, progress); err != nil {
			return nil, err
		}
		name := file(machine.System)
		program, err := os.ReadFile(filepath.Join(into, name))
		if err != nil {
			return nil, err
		}
		packed, err := tarball([]entry{
			{name: name, content: program, program: true},
			{name: "kubectl_complete-muster", content: []byte(completion), program: true},
			{name: "LICENSE", content: license},
		}, src.Date, true)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: archive(src.Version, machine.System, machine.Arch), content: packed})
	}
	manifest, err := krew(src.Version, machines, entries)
	return append(entries, manifest, entry{name: "muster.k9s.yaml", content: k9s}), err
}

func file(system string) string {
	if system == "windows" {
		return programs.Plugin + ".exe"
	}
	return programs.Plugin
}

func archive(version, system, arch string) string {
	return fmt.Sprintf("%s-%s-%s-%s.tar.gz", programs.Plugin, version, system, arch)
}

// krew returns the manifest with which `kubectl krew install --manifest` installs the plugin. archives has
// one archive per machine, in the same order.
func krew(version string, machines []Machine, archives []entry) (entry, error) {
	type object = map[string]any
	var platforms []any
	for i, machine := range machines {
		platforms = append(platforms, object{
			"selector": object{"matchLabels": object{"os": machine.System, "arch": machine.Arch}},
			"uri":      fmt.Sprintf("https://%s/releases/download/%s/%s", source.Module, version, archives[i].name),
			"sha256":   fmt.Sprintf("%x", sha256.Sum256(archives[i].content)),
			"bin":      file(machine.System),
		})
	}
	content, err := yaml.Marshal(object{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   object{"name": "muster"},
		"spec": object{
			"version":          version,
			"homepage":         "https://" + source.Module,
			"shortDescription": "See which clusters are in Fleet and what is on them",
			"description": "Shows which Cluster API clusters are in Rancher Fleet, by class, and their\n" +
				"state, and why a bundle is, or is not, on a cluster: as a tree, as a web page on\nyour own machine, and as an exit code for scripts. Checks manifests without a\n" +
				"cluster. Has your rights. Only rollout promote, retry and abort change something.\n",
			"platforms": platforms,
		},
	})
	return entry{name: "muster.krew.yaml", content: content}, err
}
