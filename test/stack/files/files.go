// Package files writes files and links atomically, and locks files.
package files

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteAtomically replaces a file so that no reader sees a part of it.
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

// SwapLink changes the target of a link in one step.
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

// Exists reports whether path exists.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}
