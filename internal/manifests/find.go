package manifests

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// extensions mark the files that kubectl reads in a folder.
var extensions = []string{".json", ".yaml", ".yml"}

// Find replaces each folder with its files, as kubectl does, including subfolders if recursive. It leaves out Helm
// charts in the folder, whose templates are no YAML, and what one of the patterns of path.Match matches: by its
// name, or by its path in the folder. Read reports paths that do not exist.
func Find(paths []string, recursive bool, exclude []string) ([]string, error) {
	var found []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if path == Stdin || err != nil || !info.IsDir() {
			found = append(found, path)
			continue
		}
		files, err := filesOf(path, recursive, exclude)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("folder %s has no file that ends in %s", path, strings.Join(extensions, ", "))
		}
		found = append(found, files...)
	}
	return found, nil
}

func filesOf(folder string, recursive bool, exclude []string) (files []string, err error) {
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		excluded, err := matches(exclude, folder, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (excluded || !recursive || isChart(path)):
			return fs.SkipDir
		case !entry.IsDir() && !excluded && slices.Contains(extensions, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

func matches(patterns []string, folder, path string) (bool, error) {
	inside, err := filepath.Rel(folder, path)
	for _, pattern := range patterns {
		byName, err := filepath.Match(pattern, filepath.Base(path))
		if err != nil {
			return false, fmt.Errorf("%q: %w", pattern, err)
		}
		if byPath, _ := filepath.Match(filepath.Clean(pattern), inside); byName || byPath {
			return true, nil
		}
	}
	return false, err
}

func isChart(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "Chart.yaml"))
	return err == nil
}
