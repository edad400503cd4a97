// Command channels generates the files for each way to install Muster. `channels chart` copies files of manifests/ into
// the Helm chart. `channels dist [FOLDER]` writes the files of a release, by default into dist/. `channels verify` checks
// that each way installs the objects of manifests/default, and the chart with a component those of its folder as well.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// addonComponentsFile is the file that clusterctl and the Cluster API Operator install.
const addonComponentsFile = "addon-components.yaml"

func main() {
	if err := run(".", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
}

// run executes a command line for the tree at root.
func run(root string, args []string) error {
	switch {
	case slices.Equal(args, []string{"verify"}):
		return verify(root)
	case slices.Equal(args, []string{"chart"}):
		return copyFiles(root)
	case len(args) > 0 && len(args) <= 2 && args[0] == "dist":
		files, err := released(root)
		if err != nil {
			return err
		}
		return write(append(args, filepath.Join(root, "dist"))[1], files)
	}
	return errors.New("say what to do: chart, dist [FOLDER] or verify")
}

func write(dir string, files map[string]string) error {
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// released returns the files of a release, by their name.
func released(root string) (map[string]string, error) {
	objects, err := kustomize(root, defaults)
	if err != nil {
		return nil, err
	}
	version, err := versionOf(objects)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, dir := range singleFiles() {
		content, err := build(root, dir, "--reorder=none") // As kubectl apply -k does.
		if err != nil {
			return nil, err
		}
		files[name] = string(content)
	}
	components, err := addonComponents(objects)
	if err != nil {
		return nil, err
	}
	files[addonComponentsFile] = components
	if files["metadata.yaml"], err = metadata(version); err != nil {
		return nil, err
	}
	files["capi-operator.yaml"], err = operatorManifest(components, files["metadata.yaml"], version)
	return files, err
}

// singleFiles returns the kustomizations that ship as one file each, for kubectl.
func singleFiles() map[string]string {
	files := map[string]string{"install.yaml": defaults}
	for _, c := range components {
		if !c.byDefault {
			files[strings.ToLower(c.name)+".yaml"] = c.dir
		}
	}
	return files
}

// component is an optional part. With byDefault, manifests/default lists it; otherwise a release has a file for it. In
// the chart, `NAME.enabled` switches it on or off.
type component struct {
	name      string
	dir       string
	byDefault bool
}

var components = []component{
	{"networkPolicy", "manifests/network", true},
	{"policies", "manifests/policy", true},
	{"registrar", "manifests/registrar", false},
	{"installer", "manifests/installer", false},
	{"helm", "manifests/helm", false},
	{"helmReadSecrets", "manifests/helm-read-secrets", false},
	{"classLabels", "manifests/class-labels", false},
	{"mappingAuthors", "manifests/mapping-authors", false},
	{"monitoring", "manifests/monitoring", false},
}

// parts are the required parts of Muster.
var parts = []string{"manifests/crd", "manifests/rbac", "manifests/webhook"}

// defaults is the kustomization that every channel installs by default.
const defaults = "manifests/default"

// series are the minor releases, with the Cluster API contract of each. clusterctl refuses a version of any
// other series.
var series = []releaseSeries{
	{Major: 0, Minor: 1, Contract: "v1beta2"},
}

const (
	// namespace is the namespace of all namespaced objects in manifests/.
	namespace = "muster-system"
	// provider is Muster's name among Cluster API's providers, as on their labels.
	provider = "addon-muster"
	// logLevelArg is an argument of every Deployment.
	logLevelArg = "--log-level="
)
