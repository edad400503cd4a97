package admission

import (
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
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
	File      string   `json:"file"`
	Kind      string   `json:"kind,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Severity  Severity `json:"severity"`
	// Path is the field; empty if the finding is about the whole object.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// String returns "file: Kind ns/name: path: message".
func (f Finding) String() string {
	name := f.Name
	if f.Namespace != "" {
		name = f.Namespace + "/" + f.Name
	}
	var parts []string
	for _, part := range []string{f.File, strings.TrimSpace(f.Kind + " " + name), f.Path, f.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	text := strings.Join(parts, ": ")
	if f.Severity == SeverityWarning {
		return "warning: " + text
	}
	return text
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
