package worker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxList limits the bytes of a list.
const maxList = 16 << 20

// Entry is one version of a chart in a repository.
type Entry struct {
	Version string
	URLs    []string
	Digest  string
}

// EntriesOf returns the versions of a chart in a list. A list has a line for each version: chart,
// version, URL, digest. As a text, it takes no more memory than its bytes.
func EntriesOf(list []byte, name string) (entries []Entry) {
	for line := range bytes.SplitSeq(list, []byte("\n")) {
		if version, isOf := bytes.CutPrefix(line, []byte(name+"\t")); isOf {
			if fields := strings.Split(string(version), "\t"); len(fields) == 3 {
				entries = append(entries, Entry{fields[0], fields[1:2], fields[2]})
			}
		}
	}
	return entries
}

// AppendEntry adds a version of a chart to a list, unless a line cannot hold it.
func AppendEntry(list []byte, name string, entry Entry) ([]byte, error) {
	url := strings.Join(entry.URLs[:min(1, len(entry.URLs))], "") // Helm uses only the first URL.
	line := strings.Join([]string{name, entry.Version, url, entry.Digest}, "\t")
	switch {
	case entry.Version == "" || strings.Count(line, "\t") != 3 || strings.Contains(line, "\n"):
		return list, nil
	case len(list)+len(line) > maxList:
		return nil, fmt.Errorf("lists more versions than fit into %d MiB", maxList>>20)
	default:
		return append(append(list, '\n'), line...), nil
	}
}

// errNoIndex is the end of a sentence.
var errNoIndex = errors.New("is not an index of a Helm repository")

// reduce makes a list of an index. It reads one version after the other if Helm wrote the index, so
// that 50 MiB take little memory; any other YAML is read as a whole.
func reduce(compressed io.Reader) (list []byte, err error) {
	text, err := gzip.NewReader(compressed)
	if err != nil {
		return nil, errNoIndex
	}
	list = make([]byte, 0, maxList) // Growing the buffer would take more than twice as much memory.
	err = split(bufio.NewReader(text), func(part []byte) error {
		var read struct{ Entries map[string][]*Entry }
		// JSON takes less memory than YAML.
		if json.Unmarshal(part, &read) != nil && yaml.Unmarshal(part, &read) != nil || read.Entries == nil {
			return errNoIndex
		}
		for name, entries := range read.Entries {
			for _, entry := range entries {
				if entry == nil {
					continue
				}
				if list, err = AppendEntry(list, name, *entry); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return list, err
}

var (
	entriesLine = regexp.MustCompile(`^entries:\s*(#.*)?$`)
	webPage     = regexp.MustCompile(`(?i)^\s*<(!doctype\s+)?html`)
)

// split cuts an index into small ones of one version each. It hands over the whole text if that
// does not have the lines of an index by Helm.
func split(text *bufio.Reader, part func([]byte) error) error {
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
			return part(before)
		case err != nil:
			return errNoIndex
		}
	}
}

// splitEntries hands over each version with the line of its chart, by the indentation of its lines.
func splitEntries(text *bufio.Reader, part func([]byte) error) error {
	var chart, item []byte
	chartAt, itemAt := 0, 0
	flush := func() error {
		version := slices.Concat([]byte("entries:\n"), chart, item)
		if item = item[:0]; chartAt == 0 {
			return nil
		}
		return part(version)
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
