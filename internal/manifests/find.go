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

// Find replaces each folder with its files, as kubectl does, including subfolders if recursive. Read
// reports paths that do not exist.
func Find(paths []string, recursive bool) ([]string, error) {
	var found []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if path == Stdin || err != nil || !info.IsDir() {
			found = append(found, path)
			continue
		}
		files, err := filesOf(path, recursive)
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

func filesOf(folder string, recursive bool) (files []string, err error) {
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != folder && !recursive:
			return fs.SkipDir
		case !entry.IsDir() && slices.Contains(extensions, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}
