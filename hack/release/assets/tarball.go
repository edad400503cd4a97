package assets

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name    string
	content []byte
	// program means that the file is executable.
	program bool
}

// tarball packs files in the order given, all with the same time and without an owner.
func tarball(entries []entry, date time.Time, compress bool) ([]byte, error) {
	var packed bytes.Buffer
	zipper, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	writer := tar.NewWriter(&packed)
	if compress {
		writer = tar.NewWriter(zipper)
	}
	for _, e := range entries {
		mode := int64(0o644)
		if e.program {
			mode = 0o755
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: mode, Size: int64(len(e.content)), ModTime: date, Format: tar.FormatPAX}
		if err := writer.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	if compress {
		if err := zipper.Close(); err != nil {
			return nil, err
		}
	}
	return packed.Bytes(), nil
}

// folder returns the files of a folder, sorted.
func folder(dir string) ([]entry, error) {
	var entries []entry
	err := filepath.WalkDir(dir, func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		entries = append(entries, entry{name: filepath.ToSlash(name), content: content})
		return err
	})
	return entries, err
}

// checksums returns the file for `sha256sum --check`.
func checksums(entries []entry) entry {
	var text bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(e.content), e.name)
	}
	return entry{name: "checksums.txt", content: text.Bytes()}
}
