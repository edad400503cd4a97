package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	// chartDir is the folder of the chart. Its templates and values are written by hand.
	chartDir = "charts/muster"
	// copies is the folder of the chart for what nobody sets. Its templates/files.yaml says what becomes of it.
	copies = chartDir + "/files"
)

// templated are the kinds that the chart's templates have by hand, because people set something in them.
var templated = []string{"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "Certificate", "Issuer", "ServiceMonitor"}

// copyFiles copies from manifests/ into the chart what its templates do not have. Nothing else stays in that folder.
func copyFiles(root string) error {
	if err := os.RemoveAll(filepath.Join(root, copies)); err != nil {
		return err
	}
	files := map[string]string{}
	for _, dir := range slices.Concat(parts, folders()) {
		found, err := filepath.Glob(filepath.Join(root, dir, "*.*"))
		if err != nil {
			return err
		}
		for _, path := range found {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			copied, err := isCopied(filepath.Base(path), content)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if copied {
				files[filepath.Base(dir)+"/"+filepath.Base(path)] = string(content)
			}
		}
	}
	return write(filepath.Join(root, copies), files)
}

// isCopied returns whether the chart has a file as it is. A file has only kinds with templates, or none.
func isCopied(name string, content []byte) (bool, error) {
	switch {
	case name == "kustomization.yaml":
		return false, nil
	case filepath.Ext(name) != ".yaml":
		return filepath.Ext(name) == ".json", nil
	}
	objects, err := decode(content)
	if err != nil {
		return false, err
	}
	byHand := 0
	for _, object := range objects {
		if slices.Contains(templated, object.GetKind()) {
			byHand++
		}
	}
	if byHand > 0 && byHand < len(objects) {
		return false, errors.New("the chart has some of these kinds in templates, and others not: split the file")
	}
	return byHand == 0, nil
}
