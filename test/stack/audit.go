package stack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// AuditEvent is one request the API server answered.
type AuditEvent struct {
	User      string
	UserAgent string
	Verb      string
	Group     string
	Resource  string
	// Subresource is "status", for example.
	Subresource string
	Namespace   string
	Name        string
	// URI holds what the other fields do not, such as dryRun and fieldManager.
	URI  string
	Code int
	// Reason says why authorization refused the request, or which binding allowed it.
	Reason string
	// Received is the time when the request arrived; Completed is the time of the answer.
	Received  time.Time
	Completed time.Time
}

// String renders an event as one line.
func (e AuditEvent) String() string {
	resource := e.Resource
	if e.Subresource != "" {
		resource += "/" + e.Subresource
	}
	return fmt.Sprintf("%s %s %s %s %s/%s -> %d", e.Received.Format("15:04:05.000"), e.User, e.Verb, resource, e.Namespace, e.Name, e.Code)
}

// AuditFilter selects events; each field that is set must match.
type AuditFilter struct {
	// User is a full user name; see ServiceAccount.
	User string
	// Since and Until bound the time a request was received.
	Since, Until time.Time
	// Where is any other condition.
	Where func(AuditEvent) bool
}

// ServiceAccount returns the user name of a ServiceAccount.
func ServiceAccount(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

func (f AuditFilter) matches(event AuditEvent) bool {
	switch {
	case f.User != "" && event.User != f.User:
		return false
	case !f.Since.IsZero() && event.Received.Before(f.Since):
		return false
	case !f.Until.IsZero() && event.Received.After(f.Until):
		return false
	}
	return f.Where == nil || f.Where(event)
}

// AuditLog returns the selected requests in the order of their answers. The log has a request before the API server
// sends the answer; it has a watch when the watch ends.
func (s *Stack) AuditLog(filter AuditFilter) ([]AuditEvent, error) {
	return s.auditLog("", filter)
}

func (s *Stack) auditLog(plane string, filter AuditFilter) ([]AuditEvent, error) {
	return (&AuditTail{path: (&controlPlane{dir: s.planeDir(plane)}).auditLog()}).Read(filter)
}

// AuditTail continues where its last Read ended, so that a long log is read only once.
type AuditTail struct {
	path string
	next int64
}

// AuditTail begins at the current end of the log.
func (s *Stack) AuditTail() (*AuditTail, error) {
	tail := &AuditTail{path: (&controlPlane{dir: s.planeDir("")}).auditLog()}
	content, err := os.ReadFile(tail.path)
	// The API server is still writing the text after the last line end.
	tail.next = int64(bytes.LastIndexByte(content, '\n') + 1)
	return tail, err
}

// Read returns the selected requests that were answered since the last Read.
func (t *AuditTail) Read(filter AuditFilter) (events []AuditEvent, err error) {
	file, err := os.Open(t.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(t.next, io.SeekStart); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(file)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// A line without an end is still being written, or was when the API server was killed.
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		t.next += int64(len(line))
		var raw rawAuditEvent
		if err := json.Unmarshal(line, &raw); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", t.path, err, line)
		}
		event := AuditEvent{
			User: raw.User.Username, UserAgent: raw.UserAgent, Verb: raw.Verb,
			Group: raw.ObjectRef.APIGroup, Resource: raw.ObjectRef.Resource, Subresource: raw.ObjectRef.Subresource,
			Namespace: raw.ObjectRef.Namespace, Name: raw.ObjectRef.Name,
			URI: raw.RequestURI, Code: raw.ResponseStatus.Code, Reason: raw.Annotations.Reason,
			Received: raw.Received, Completed: raw.Completed,
		}
		if filter.matches(event) {
			events = append(events, event)
		}
	}
}

// rawAuditEvent is the part of an audit.k8s.io/v1 Event that the tests use.
type rawAuditEvent struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations struct {
		Reason string `json:"authorization.k8s.io/reason"`
	} `json:"annotations"`
	Received  time.Time `json:"requestReceivedTimestamp"`
	Completed time.Time `json:"stageTimestamp"`
}
