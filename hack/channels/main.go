// Command channels generates, from manifests/, what the ways to install Muster take:
// `channels chart` the Helm chart, which is committed; `channels dist [FOLDER]` the files of
// a release, into dist/ unless a folder is given. `channels verify` checks that each way,
// with its defaults, installs the objects of manifests/default.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// addonComponentsFile is what clusterctl and the Cluster API Operator install.
const addonComponentsFile = "addon-components.yaml"

func main() {
	if err := run(".", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
}

// run carries out a command line for the tree at root.
func run(root string, args []string) error {
	switch {
	case slices.Equal(args, []string{"verify"}):
		return verify(root)
	case slices.Equal(args, []string{"chart"}):
		files, err := generatedChart(root)
		if err != nil {
			return err
		}
		return write(root, files)
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

// shippedObjects returns the objects of manifests/default, and the images that they name.
func shippedObjects(root string) ([]*unstructured.Unstructured, image, error) {
	objects, err := kustomize(root, defaults)
	if err != nil {
		return nil, image{}, err
	}
	from, err := imageOf(objects)
	return objects, from, err
}

// generatedChart returns the generated files of the chart, by their path from the root.
func generatedChart(root string) (map[string]string, error) {
	objects, from, err := shippedObjects(root)
	if err != nil {
		return nil, err
	}
	return chart(root, objects, from)
}

// released returns the files of a release, by their name.
func released(root string) (map[string]string, error) {
	objects, from, err := shippedObjects(root)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, dir := range singleFiles() {
		content, err := build(root, dir)
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
	if files["metadata.yaml"], err = metadata(from.tag); err != nil {
		return nil, err
	}
	files["capi-operator.yaml"], err = operatorManifest(components, files["metadata.yaml"], from.tag)
	return files, err
}

// singleFiles are the kustomizations that ship as a file for kubectl.
func singleFiles() map[string]string {
	files := map[string]string{"install.yaml": defaults}
	for _, c := range components {
		if !c.byDefault {
			files[strings.ToLower(c.name)+".yaml"] = c.dir
		}
	}
	return files
}
