package plan

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

// MaxValues is how large the values of one Cluster may be. Fleet keeps them in a Secret for
// each, twice.
const MaxValues = 512 << 10

// Template is a values template that parses.
type Template struct {
	parsed *template.Template
	static bool
}

// withheld are functions of sprig that show what the program can see, not what the author may.
var withheld = []string{"env", "expandenv", "getHostByName"}

// unsteady are functions that give something else each time: with them, values change
// whenever they are rendered again.
var unsteady = map[string]bool{
	"now": true, "ago": true, "uuidv4": true, "shuffle": true, "randBytes": true, "randInt": true,
	"randAlpha": true, "randAlphaNum": true, "randAscii": true, "randNumeric": true,
	"genPrivateKey": true, "genCA": true, "genCAWithKey": true, "genSelfSignedCert": true, "genSelfSignedCertWithKey": true,
	"genSignedCert": true, "genSignedCertWithKey": true, "htpasswd": true, "bcrypt": true, "encryptAES": true,
}

func functions() template.FuncMap {
	all := sprig.TxtFuncMap()
	for _, name := range withheld {
		delete(all, name)
	}
	return all
}

const templateName = "valuesTemplate"

// Parse parses a values template. The error says where it is wrong.
func Parse(text string) (*Template, error) {
	parsed, err := template.New(templateName).Funcs(functions()).Parse(text)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	return &Template{parsed: parsed, static: isStatic(parsed)}, nil
}

// IsStatic reports whether the values are the same for all Clusters.
func (t *Template) IsStatic() bool { return t.static }

// isStatic reports whether a template is the same for all Clusters.
func isStatic(parsed *template.Template) bool {
	if parsed.Tree == nil || parsed.Root == nil {
		return true
	}
	for _, node := range parsed.Root.Nodes {
		if node.Type() != parse.NodeText && node.Type() != parse.NodeComment {
			return false
		}
	}
	return true
}

// Unsteady returns the functions in a template that give something else each time.
func (t *Template) Unsteady() []string {
	var found []string
	seen := map[string]bool{}
	for _, defined := range t.parsed.Templates() {
		if defined.Tree == nil {
			continue
		}
		for _, word := range identifier.FindAllString(defined.Root.String(), -1) {
			if unsteady[word] && !seen[word] {
				seen[word] = true
				found = append(found, word)
			}
		}
	}
	return found
}

var identifier = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*`)

// Render renders the values of one Cluster. Its error says where the template failed, and
// nothing that is in the data: it is shown to whoever may read conditions.
func (t *Template) Render(data map[string]any) ([]byte, error) {
	out := &bounded{limit: MaxValues}
	if err := t.parsed.Execute(out, data); err != nil {
		if out.exceeded {
			return nil, errTooLarge
		}
		return nil, errors.New(withoutData(err))
	}
	return normalized(out.Bytes())
}

var errTooLarge = fmt.Errorf("the values are larger than %d KiB", MaxValues>>10)

// normalized returns values that Helm can read, and that take effect: where values are
// empty, an upgrade keeps the last ones.
func normalized(values []byte) ([]byte, error) {
	parsed, err := parseValues(values)
	if err != nil {
		return nil, err
	}
	if len(parsed) == 0 {
		return []byte(noValues), nil
	}
	return values, nil
}

// CheckValues returns an error unless Helm can read values. It says nothing of them.
func CheckValues(values []byte) error {
	if len(values) > MaxValues {
		return errTooLarge
	}
	_, err := parseValues(values)
	return err
}

func parseValues(values []byte) (map[string]any, error) {
	var parsed map[string]any
	if err := yaml.Unmarshal(values, &parsed); err != nil {
		if line := yamlLine.FindString(err.Error()); line != "" {
			return nil, fmt.Errorf("the values are not a map in YAML: %s", line)
		}
		return nil, errors.New("the values are not a map in YAML")
	}
	return parsed, nil
}

var yamlLine = regexp.MustCompile(`line \d+`)

// noValues stands for empty values.
const noValues = "global: {}\n"

var (
	// location is how text/template says where it has failed.
	location = regexp.MustCompile(`^template: (` + templateName + `:\d+:\d+: executing "[^"]*" at <.*?>): (.*)$`)
	// harmless are the ends of errors that speak of the template or of types only.
	harmless = regexp.MustCompile(`^(nil pointer evaluating [a-zA-Z0-9{}*. ]+|can't evaluate field \S+ in type [a-zA-Z0-9{}*. ]+|map has no entry for key "[^"]*"|wrong type for value; expected \S+; got \S+|wrong number of args for \S+.*|range can't iterate over)`)
	calling  = regexp.MustCompile(`^error calling \w+`)
)

// withoutData returns what an error of a template says, without the values that functions
// put into theirs.
func withoutData(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	match := location.FindStringSubmatch(text)
	if match == nil {
		return "the template failed"
	}
	where, what := match[1], match[2]
	if known := harmless.FindString(what); known != "" {
		return where + ": " + known
	}
	if known := calling.FindString(what); known != "" {
		return where + ": " + known
	}
	return where + ": failed"
}

// bounded refuses more than fits into one object.
type bounded struct {
	bytes.Buffer
	limit    int
	exceeded bool
}

// Write writes.
func (b *bounded) Write(data []byte) (int, error) {
	if b.Len()+len(data) > b.limit {
		b.exceeded = true
		return 0, errTooLarge
	}
	return b.Buffer.Write(data)
}
