// Package values renders values templates: Go templates with the functions of sprig over a Cluster and the objects
// that it refers to. It does not limit the memory or time of a rendering: package worker does that from outside.
package values

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	// MaxSize is the size limit of a Cluster's values. Fleet stores them twice, in Secrets.
	MaxSize = 512 << 10

	templateName = "valuesTemplate"
	// empty replaces empty values: an upgrade with empty values keeps the previous ones.
	empty = "global: {}\n"
)

// Template is a values template that parses.
type Template struct{ parsed *template.Template }

// functions are the functions of sprig, without the ones that show this program's environment.
var functions = func() template.FuncMap {
	all := sprig.TxtFuncMap()
	for _, name := range []string{"env", "expandenv", "getHostByName"} {
		delete(all, name)
	}
	return all
}()

// Parse parses a values template, whose length the CRD limits. The error says where it is wrong. Programs that
// parse the templates of several namespaces in their own process use package templates.
func Parse(text string) (*Template, error) {
	parsed, err := ParseBounded(template.New(templateName).Funcs(functions), "{{", "}}", text)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	return &Template{parsed}, nil
}

// Root returns what the parser made of the template; nil for nothing.
func (t *Template) Root() *parse.ListNode {
	if t.parsed.Tree == nil {
		return nil
	}
	return t.parsed.Root
}

// IsStatic reports whether the values are the same for all Clusters.
func (t *Template) IsStatic() bool {
	root := t.Root()
	return root == nil || !slices.ContainsFunc(root.Nodes, func(node parse.Node) bool {
		return node.Type() != parse.NodeText && node.Type() != parse.NodeComment
	})
}

var (
	identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	unsteady   = []string{
		"ago", "bcrypt", "encryptAES", "genCA", "genCAWithKey", "genPrivateKey", "genSelfSignedCert", "genSelfSignedCertWithKey",
		"genSignedCert", "genSignedCertWithKey", "htpasswd", "now", "randAlpha", "randAlphaNum", "randAscii", "randBytes", "randInt",
		"randNumeric", "shuffle", "uuidv4",
	}
)

// Unsteady returns the functions in a template that return something else at each call: values
// with them change at each rendering.
func (t *Template) Unsteady() []string {
	var words []string
	for _, defined := range t.parsed.Templates() {
		if defined.Tree != nil && defined.Root != nil {
			words = append(words, identifier.FindAllString(defined.Root.String(), -1)...)
		}
	}
	return slices.DeleteFunc(slices.Clone(unsteady), func(name string) bool { return !slices.Contains(words, name) })
}

// Render renders the values of one Cluster. The error says where the template failed, but contains
// no data: conditions show it.
func (t *Template) Render(data map[string]any) ([]byte, error) {
	encoded, err := json.Marshal(data)
	if err != nil {
		return nil, errors.New("the data cannot be used")
	}
	return t.RenderJSON(encoded)
}

// RenderJSON is Render for data in JSON.
func (t *Template) RenderJSON(encoded []byte) ([]byte, error) {
	var data map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(encoded, &data); err != nil {
		return nil, errors.New("the data cannot be used")
	}
	var out bytes.Buffer
	if err := t.parsed.Execute(&out, data); err != nil {
		return nil, errors.New(withoutData(err))
	}
	switch parsed, err := read(out.Bytes()); {
	case err != nil:
		return nil, err
	case len(parsed) == 0:
		return []byte(empty), nil
	default:
		return out.Bytes(), nil
	}
}

// Check returns an error unless Helm can read values. The error shows none of them.
func Check(values []byte) error {
	_, err := read(values)
	return err
}

var yamlLine = regexp.MustCompile(`line \d+`)

func read(values []byte) (parsed map[string]any, err error) {
	if len(values) > MaxSize {
		return nil, fmt.Errorf("the values are larger than %d KiB", MaxSize>>10)
	}
	if err := yaml.Unmarshal(values, &parsed); err != nil {
		if line := yamlLine.FindString(err.Error()); line != "" {
			return nil, fmt.Errorf("the values are not a map in YAML: %s", line)
		}
		return nil, errors.New("the values are not a map in YAML")
	}
	return parsed, nil
}

var (
	// location matches how text/template says where it failed.
	location = regexp.MustCompile(`^template: (` + templateName + `:\d+:\d+: executing "[^"]*" at <.*?>): (.*)$`)
	// harmless matches errors that name nothing but parts of the template, and types.
	harmless = regexp.MustCompile(`^(error calling \w+|nil pointer evaluating [a-zA-Z0-9{}*. ]+|can't evaluate field \S+ in type [a-zA-Z0-9{}*. ]+|map has no entry for key "[^"]*"|wrong type for value; expected \S+; got \S+|wrong number of args for \S+.*|range can't iterate over)`)
)

// withoutData returns the message of a template's error without the values that functions put
// into their messages.
func withoutData(err error) string {
	match := location.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if match == nil {
		return "the template failed"
	}
	if known := harmless.FindString(match[2]); known != "" {
		return match[1] + ": " + known
	}
	return match[1] + ": failed"
}
