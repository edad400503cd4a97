package admission

import (
	"errors"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"

	"github.com/muster-fleet/muster/internal/manifests"
)

// Severity says whether the webhooks would refuse the object, or only warn.
type Severity string

// The severities of findings.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Finding is what the webhooks would say about a manifest.
type Finding struct {
	File string `json:"file"`
	// Line is where the object begins, or its field; 0 if that is unknown, as in JSON.
	Line       int      `json:"line,omitempty"`
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Namespace  string   `json:"namespace,omitempty"`
	Name       string   `json:"name,omitempty"`
	Severity   Severity `json:"severity"`
	// Path is the field; empty if the finding is about the whole object.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`

	object *manifests.Object
}

// String returns "file:line: Kind ns/name: path: message".
func (f Finding) String() string {
	text := f.File
	if f.Line > 0 {
		text += ":" + strconv.Itoa(f.Line)
	}
	text += ": " + f.text()
	if f.Severity == SeverityWarning {
		return "warning: " + text
	}
	return text
}

// text returns "Kind ns/name: path: message".
func (f Finding) text() string {
	name := f.Name
	if f.Namespace != "" {
		name = f.Namespace + "/" + f.Name
	}
	var parts []string
	for _, part := range []string{strings.TrimSpace(f.Kind + " " + name), f.Path, f.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// GitHub escapes these characters in a message, and two more in a property.
var (
	messageEscapes  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	propertyEscapes = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// Annotation returns the workflow command with which GitHub shows the finding at its line of a pull request. See
// https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands.
func (f Finding) Annotation() string {
	at := ""
	if f.File != manifests.Stdin {
		at = " file=" + propertyEscapes.Replace(f.File)
		if f.Line > 0 {
			at += ",line=" + strconv.Itoa(f.Line)
		}
	}
	return "::" + string(f.Severity) + at + "::" + messageEscapes.Replace(f.text())
}

// findUnknown finds the fields that the kind of an object does not have.
func (c *checker) findUnknown(about Finding, unknown []error) {
	for _, err := range unknown {
		path, message := "", err.Error()
		var field json.FieldError
		if errors.As(err, &field) {
			path, message = field.FieldPath(), "is a field that a "+about.Kind+" does not have; remove it, or correct its spelling"
		}
		c.find(about, SeverityError, path, message)
	}
}

func (c *checker) find(about Finding, severity Severity, path, message string) {
	if message == "" {
		return
	}
	about.Severity, about.Path, about.Message = severity, path, message
	if about.object != nil {
		about.Line = about.object.LineOf(path)
	}
	c.findings = append(c.findings, about)
}

// findBroken adds an error for each field that the webhooks or the CRD refuse; if both do, with the webhook's
// message.
func (c *checker) findBroken(about Finding, refused, broken field.ErrorList) {
	said := map[string]bool{}
	for _, err := range refused {
		c.find(about, SeverityError, err.Field, err.ErrorBody())
		said[err.Field] = true
	}
	for _, err := range broken {
		path, message := err.Field, err.ErrorBody()
		if path == (*field.Path)(nil).String() {
			// For a rule about the whole object, the message names the field.
			path, message, _ = strings.Cut(err.Detail, ": ")
		}
		if !said[path] {
			c.find(about, SeverityError, path, message)
		}
	}
}
