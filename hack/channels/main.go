// Command channels generates, from manifests/, what the ways to install Muster take: the
// files under dist/ and the Helm chart. `channels verify` checks that each of them, with its
// defaults, gives the objects of manifests/default.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	do := generate
	if len(os.Args) == 2 && os.Args[1] == "verify" {
		do = verify
	}
	if err := do("."); err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
}

// generate writes every generated file of the tree at root.
func generate(root string) error {
	files, err := generated(root)
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generated returns the generated files by their path.
func generated(root string) (map[string]string, error) {
	objects, err := kustomize(root, defaults)
	if err != nil {
		return nil, err
	}
	from, err := imageOf(objects)
	if err != nil {
		return nil, err
	}
	files, err := chart(root, objects, from)
	if err != nil {
		return nil, err
	}
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
	files["dist/addon-components.yaml"] = components
	if files["dist/metadata.yaml"], err = metadata(from.tag); err != nil {
		return nil, err
	}
	files["dist/capi-operator.yaml"], err = operatorManifest(components, files["dist/metadata.yaml"], from.tag)
	return files, err
}

// singleFiles are the kustomizations that ship as a file for kubectl.
func singleFiles() map[string]string {
	files := map[string]string{"dist/install.yaml": defaults}
	for _, c := range components {
		if !c.byDefault {
			files["dist/"+strings.ToLower(c.name)+".yaml"] = c.dir
		}
	}
	return files
}
