package stack

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const auditLines = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete","requestURI":"/apis/fleet.cattle.io/v1alpha1/namespaces/team/clusters/one/status?fieldManager=x","verb":"patch","user":{"username":"system:serviceaccount:muster-system:muster-syncer"},"userAgent":"syncer/v0","objectRef":{"resource":"clusters","namespace":"team","name":"one","apiGroup":"fleet.cattle.io","apiVersion":"v1alpha1","subresource":"status"},"responseStatus":{"metadata":{},"code":403},"requestReceivedTimestamp":"2026-01-02T03:04:05.000000Z","stageTimestamp":"2026-01-02T03:04:05.250000Z","annotations":{"authorization.k8s.io/decision":"forbid","authorization.k8s.io/reason":"nobody said so"}}
{"verb":"get","requestURI":"/readyz","user":{"username":"admin"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:06Z","stageTimestamp":"2026-01-02T03:04:06Z"}
{"verb":"get","requestURI":"/half`

// The log is read line by line and filtered. A tail reads every line once; it reads an unfinished line when the
// line is complete.
func TestAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	received := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	syncers := AuditEvent{
		User: ServiceAccount("muster-system", "muster-syncer"), UserAgent: "syncer/v0", Verb: "patch",
		Group: "fleet.cattle.io", Resource: "clusters", Subresource: "status", Namespace: "team", Name: "one",
		URI: "/apis/fleet.cattle.io/v1alpha1/namespaces/team/clusters/one/status?fieldManager=x", Code: 403, Reason: "nobody said so",
		Received: received, Completed: received.Add(250 * time.Millisecond),
	}
	admins := AuditEvent{User: "admin", Verb: "get", URI: "/readyz", Code: 200, Received: received.Add(time.Second), Completed: received.Add(time.Second)}
	write(auditLines)
	for name, test := range map[string]struct {
		filter AuditFilter
		want   []AuditEvent
	}{
		"all":   {AuditFilter{}, []AuditEvent{syncers, admins}},
		"user":  {AuditFilter{User: "admin"}, []AuditEvent{admins}},
		"since": {AuditFilter{Since: received.Add(time.Second)}, []AuditEvent{admins}},
		"until": {AuditFilter{Until: received}, []AuditEvent{syncers}},
		"where": {AuditFilter{Where: func(e AuditEvent) bool { return e.Code < 400 }}, []AuditEvent{admins}},
	} {
		got, err := (&AuditTail{path: path}).Read(test.filter)
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	tail := &AuditTail{path: path}
	if events, err := tail.Read(AuditFilter{}); err != nil || len(events) != 2 {
		t.Errorf("%v (%v)", events, err)
	}
	write(auditLines + `","user":{"username":"late"}}` + "\n")
	if events, err := tail.Read(AuditFilter{}); err != nil || len(events) != 1 || events[0].User != "late" {
		t.Errorf("%v (%v)", events, err)
	}
}
