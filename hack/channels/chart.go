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
	// copies is a folder of the chart with the files of manifests/ in which users set nothing. The chart's
	// templates/files.yaml renders them.
	copies = chartDir + "/files"
)

// templated lists the kinds with handwritten templates, because users set something in them.
var templated = []string{"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "Certificate", "Issuer", "ServiceMonitor"}

// copyFiles replaces the copies in the chart by the current files of manifests/.
func copyFiles(root string) error {
	if err := os.RemoveAll(filepath.Join(root, copies)); err != nil {
		return err
	}
	files := map[string]string{}
	dirs := slices.Clone(parts)
	for _, c := range components {
		dirs = append(dirs, c.dir)
	}
	for _, dir := range dirs {
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

// isCopied returns whether the chart has a copy of a file. It fails if only some of the file's kinds have templates.
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
