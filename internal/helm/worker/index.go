package worker

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"go.yaml.in/yaml/v3"
)

const (
	// maxVersions limits the versions of a chart from which a range or the newest is chosen.
	maxVersions = 100_000
	// maxEntry limits the bytes of an entry that leaves the child. A longer one is left out.
	maxEntry = 16 << 10
)

// Entry is one version of a chart in a repository.
type Entry struct {
	Version string
	// URL is empty in a registry.
	URL    string
	Digest string
}

// Size returns the number of bytes of the entry.
func (e *Entry) Size() int { return len(e.Version) + len(e.URL) + len(e.Digest) }

// Found is what a search has found.
type Found struct {
	// Entry has no Version if there is none.
	Entry
	// Versions counts the versions of the chart up to the Entry, or all of them.
	Versions int
}

// indexed is an entry of an index.
type indexed struct {
	Version string
	URLs    []string
	Digest  string
}

// walk goes through a list, and keeps nothing of it.
type walk struct {
	Search
	// text is part of each wanted entry if the version is exact. Other entries need not be parsed.
	text string
	// versions counts the versions of the chart.
	versions int
	// take is called with each of them.
	take func(Entry) error
}

// through walks through a compressed list.
func (w *walk) through(compressed io.Reader) error {
	text, err := gzip.NewReader(compressed)
	switch {
	case err != nil:
		return errNoIndex
	case w.InTags:
		return w.tags(text)
	default:
		return w.index(bufio.NewReader(text))
	}
}

// see counts an entry of the chart, and hands it over if it can be used.
func (w *walk) see(entry Entry) error {
	if w.versions++; w.text == "" && w.versions > maxVersions {
		return errMany
	}
	if entry.Version == "" || entry.Size() > maxEntry {
		return nil
	}
	return w.take(entry)
}

// errFound ends a walk.
var errFound = errors.New("found")

// find returns the entry with the wanted version, or else the newest in the range.
func find(its Search, compressed io.Reader) (found Found, err error) {
	within, invalid := semver.NewConstraint(cmp.Or(its.Wanted, "*")) // The name of a version may be no range.
	var newest *semver.Version
	w := &walk{Search: its, take: func(entry Entry) error {
		if entry.Version == its.Wanted {
			found.Entry = entry
			return errFound
		}
		version, err := semver.NewVersion(entry.Version)
		if err == nil && invalid == nil && within.Check(version) && (newest == nil || version.GreaterThan(newest)) {
			found.Entry, newest = entry, version
		}
		return nil
	}}
	if exact, err := semver.StrictNewVersion(strings.TrimPrefix(its.Wanted, "v")); err == nil {
		w.text, _, _ = strings.Cut(exact.Original(), "+")
	}
	err = w.through(compressed)
	if found.Versions = w.versions; errors.Is(err, errFound) {
		err = nil
	}
	return found, err
}

// Versions returns all versions of a chart in a compressed list. It works in this process, without a limit of memory or
// time. The error is a Problem.
func Versions(its Search, compressed io.Reader) (versions []string, _ error) {
	w := &walk{Search: its, take: func(entry Entry) error {
		versions = append(versions, entry.Version)
		return nil
	}}
	if err := w.through(compressed); err != nil {
		return nil, Problem(err.Error())
	}
	return versions, nil
}

// tags walks through the pages of a registry's tags.
func (w *walk) tags(text io.Reader) error {
	for pages := json.NewDecoder(text); ; {
		var page struct{ Tags []string }
		if err := pages.Decode(&page); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return errors.New("sent tags that cannot be read")
		}
		for _, tag := range page.Tags {
			version := strings.ReplaceAll(tag, "_", "+") // A tag cannot contain a plus.
			if _, err := semver.StrictNewVersion(version); err != nil {
				version = ""
			}
			if err := w.see(Entry{Version: version}); err != nil {
				return err
			}
		}
	}
}

// These are the ends of sentences.
var (
	errNoIndex = errors.New("is not an index of a Helm repository")
	errMany    = fmt.Errorf("lists more than %d versions of the chart: name an exact version", maxVersions)
)

// index walks through an index. If Helm wrote it, index reads one version after the other, so that 50 MiB take little
// memory, and skips versions that are not wanted. It reads any other YAML as a whole.
func (w *walk) index(text *bufio.Reader) error {
	return split(text, func(chart, item []byte) error {
		isOther := len(chart) > 0 && !bytes.Contains(chart, []byte(w.Chart))
		if isOther || w.versions > 0 && !bytes.Contains(chart, []byte(w.text)) && !bytes.Contains(item, []byte(w.text)) {
			return nil
		}
		part := item
		if len(chart) > 0 {
			part = slices.Concat([]byte("entries:\n"), chart, item)
		}
		var read struct{ Entries map[string][]*indexed }
		// JSON takes less memory than YAML.
		if json.Unmarshal(part, &read) != nil && yaml.Unmarshal(part, &read) != nil || read.Entries == nil {
			return errNoIndex
		}
		for _, entry := range read.Entries[w.Chart] {
			if entry == nil {
				continue
			}
			url := append(entry.URLs, "")[0] // Helm uses only the first URL.
			if err := w.see(Entry{entry.Version, url, entry.Digest}); err != nil {
				return err
			}
		}
		return nil
	})
}

var (
	entriesLine = regexp.MustCompile(`^entries:\s*(#.*)?$`)
	webPage     = regexp.MustCompile(`(?i)^\s*<(!doctype\s+)?html`)
)

// split cuts an index into small ones of one version each, of which it hands over the line of the chart and the lines of
// the version. It hands over the whole text if that does not have the lines of an index by Helm.
func split(text *bufio.Reader, part func(chart, item []byte) error) error {
	var before []byte
	for {
		line, err := text.ReadBytes('\n')
		if entriesLine.Match(bytes.TrimRight(line, "\r\n")) {
			return splitEntries(text, part)
		}
		before = append(before, line...)
		switch {
		case errors.Is(err, io.EOF) && webPage.Match(before):
			return fmt.Errorf("%w but a web page", errNoIndex)
		case errors.Is(err, io.EOF):
			return part(nil, before)
		case err != nil:
			return errNoIndex
		}
	}
}

// splitEntries hands over each version with the line of its chart, by the indentation of its lines.
func splitEntries(text *bufio.Reader, part func(chart, item []byte) error) error {
	var chart, item []byte
	chartAt, itemAt := 0, 0
	flush := func() error {
		version := item
		if item = item[:0]; chartAt == 0 {
			return nil
		}
		return part(chart, version)
	}
	for {
		line, err := text.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return errNoIndex
		}
		trimmed, indent := bytes.TrimSpace(line), len(line)-len(bytes.TrimLeft(line, " "))
		isItem, isComment := bytes.HasPrefix(trimmed, []byte("-")), len(trimmed) == 0 || trimmed[0] == '#' // The line may also be part of a text.
		err = nil
		switch {
		case len(line) == 0, indent == 0 && !isComment:
			return flush()
		case !isItem && !isComment && (chartAt == 0 || indent == chartAt):
			err = flush()
			chartAt, itemAt, chart = indent, 0, line
			line = nil
		case isItem && itemAt == 0:
			itemAt = indent
		case isItem && indent == itemAt:
			err = flush()
		}
		if item = append(item, line...); err != nil {
			return err
		}
	}
}
