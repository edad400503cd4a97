// Package files does to files what must happen whole or not at all, or to one at a time.
package files

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteAtomically replaces a file so that no reader sees half of it.
func WriteAtomically(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, content, 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// SwapLink points a link elsewhere in one step.
func SwapLink(target, link string) error {
	temporary := link + "_tmp"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, link)
}

// Exists reports whether there is something at path.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}
