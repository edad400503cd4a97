// Package table reads docs/internals/conformance.md, which describes the fate of every field and word of
// cluster-api-addon-provider-helm's API. Only tests use it: they do what the tables say.
package table

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// Page is where the tables are, seen from a package that is two folders deep.
const Page = "../../docs/internals/conformance.md"

// The headings of the tables.
const (
	Spec       = "Spec"
	Status     = "Status, labels, annotations and columns"
	Conditions = "Conditions and reasons"
)

// The possible fates of a field or a word.
const (
	Same    = "same"
	Refused = "refused"
	Warned  = "warned"
	Differs = "differs"
	Never   = "never"
	Musters = "Muster's"
)

// Row is a row of a table.
type Row struct {
	// Table is the heading of its table.
	Table string
	// What names a field or word; in the first table, it is YAML as in a spec.
	What string
	// Verdict is the fate of the field or word, and How explains it.
	Verdict, How string
	// Tests name the tests of it, each as a package and a function.
	Tests []string
}

var code = regexp.MustCompile("`([^`]+)`")

// Read returns the rows of all tables.
func Read(path string) ([]Row, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []Row
	heading := ""
	for number, line := range strings.Split(string(content), "\n") {
		if its, found := strings.CutPrefix(line, "## "); found {
			heading = its
		}
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 4 {
			return nil, fmt.Errorf("line %d has %d cells, not 4", number+1, len(cells))
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, Row{
			Table: heading, What: strings.Trim(cells[0], "`"), Verdict: cells[1], How: cells[2], Tests: strings.Split(cells[3], ", "),
		})
	}
	return rows, nil
}

// Quoted returns the texts that How quotes as code.
func (r Row) Quoted() []string {
	var all []string
	for _, match := range code.FindAllStringSubmatch(r.How, -1) {
		all = append(all, match[1])
	}
	return all
}

// Names reports whether a row names a test.
func (r Row) Names(test string) bool {
	for _, its := range r.Tests {
		if its == test {
			return true
		}
	}
	return false
}

// Parse returns YAML as written in a spec. Its first key may be a path.
func Parse(text string) (map[string]any, error) {
	path, value, found := strings.Cut(text, ":")
	if !found {
		return nil, fmt.Errorf("%q is not a field and its value", text)
	}
	steps := strings.Split(path, ".")
	document := steps[len(steps)-1] + ":" + value
	result := map[string]any{}
	if err := yaml.Unmarshal([]byte(document), &result); err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	for i := len(steps) - 2; i >= 0; i-- {
		result = map[string]any{steps[i]: result}
	}
	return result, nil
}
