package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"time"
	"unicode/utf8"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/sync/desired"
)

// MaxValues is how large the values of one Cluster may be. Fleet keeps them in a Secret for
// each, twice.
const MaxValues = 512 << 10

// Template is a values template that parses.
type Template struct {
	parsed *template.Template
	static bool
	// words are those in it, names of functions among them.
	words map[string]bool
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

const templateName = "valuesTemplate"

// Parse parses a values template. The error says where it is wrong.
func Parse(text string) (*Template, error) {
	if utf8.RuneCountInString(text) > MaxTemplate {
		return nil, fmt.Errorf("it has more than %d characters", MaxTemplate)
	}
	parsed, err := template.New(templateName).Funcs(offered).Parse(text)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	result := &Template{parsed: parsed, static: isStatic(parsed), words: map[string]bool{}}
	for _, defined := range parsed.Templates() {
		if defined.Tree == nil || defined.Root == nil {
			continue
		}
		for _, word := range identifier.FindAllString(defined.Root.String(), -1) {
			result.words[word] = true
		}
		tick(defined.Root)
	}
	return result, nil
}

// offered are the functions that a template may use.
var offered = (&rendering{}).functions(nil)

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
	for word := range t.words {
		if unsteady[word] {
			found = append(found, word)
		}
	}
	slices.Sort(found)
	return found
}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// Render renders the values of one Cluster. Its error says where the template failed, and
// nothing that is in the data: it is shown to whoever may read conditions.
func (t *Template) Render(data map[string]any) ([]byte, error) {
	once := &rendering{until: time.Now().Add(patience)}
	its, err := t.parsed.Clone() // Its functions are bounded for this rendering.
	if err != nil {
		return nil, errors.New("the template cannot be used")
	}
	out := &bounded{limit: MaxValues, inTime: once.inTime}
	if err := its.Funcs(once.functions(t.words)).Execute(out, data); err != nil {
		var limit limitError
		if errors.As(err, &limit) {
			return nil, limit
		}
		return nil, errors.New(withoutData(err))
	}
	return normalized(out.Bytes())
}

var errTooLarge = beyond("the values are larger than %d KiB", MaxValues>>10)

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
	if isBomb(values) {
		return nil, fmt.Errorf("the values are larger than %d KiB when their aliases are resolved", maxExpanded>>10)
	}
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
	limit  int
	inTime func() error
}

// Write writes.
func (b *bounded) Write(data []byte) (int, error) {
	if err := b.inTime(); err != nil {
		return 0, err
	}
	if b.Len()+len(data) > b.limit {
		return 0, errTooLarge
	}
	return b.Buffer.Write(data)
}

// infraCluster is what templates call the infrastructure cluster.
const infraCluster = "InfraCluster"

// WriteRead writes what templates may read of a Cluster. As long as that is the same, what was
// rendered is: its status, and who else writes to it, play no part.
func WriteRead(cluster *clusterv1.Cluster, exclude []string, to io.Writer) error {
	values, err := desired.Values(cluster, nil, nil, exclude)
	if err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(values) // Maps are written in the order of their keys.
}

// Data returns what the template of a Cluster may use: the Cluster, what it refers to, and
// the variables of its topology, without what the settings exclude.
func Data(cluster *clusterv1.Cluster, controlPlane, infrastructure map[string]any, exclude []string) (map[string]any, error) {
	values, err := desired.Values(cluster, controlPlane, infrastructure, exclude)
	if err != nil {
		return nil, err
	}
	if infrastructure, found := values[desired.InfrastructureValue]; found {
		delete(values, desired.InfrastructureValue)
		values[infraCluster] = infrastructure
	}
	return values, nil
}
