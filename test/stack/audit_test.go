package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const auditLines = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete","requestURI":"/apis/fleet.cattle.io/v1alpha1/namespaces/team/clusters/one/status?fieldManager=x","verb":"patch","user":{"username":"system:serviceaccount:muster-system:muster-syncer"},"userAgent":"syncer/v0","objectRef":{"resource":"clusters","namespace":"team","name":"one","apiGroup":"fleet.cattle.io","apiVersion":"v1alpha1","subresource":"status"},"responseStatus":{"metadata":{},"code":403},"requestReceivedTimestamp":"2026-01-02T03:04:05.000000Z","stageTimestamp":"2026-01-02T03:04:05.250000Z","annotations":{"authorization.k8s.io/decision":"forbid","authorization.k8s.io/reason":"nobody said so"}}
{"verb":"get","requestURI":"/readyz","user":{"username":"admin"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:06Z","stageTimestamp":"2026-01-02T03:04:06Z"}
{"verb":"get","requestURI":"/half`

func TestAuditLogIsReadAndFiltered(t *testing.T) {
	all, err := readAudit(strings.NewReader(auditLines), AuditFilter{})
	if err != nil || len(all) != 2 {
		t.Fatalf("want two whole lines, got %v (%v)", all, err)
	}
	received := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := AuditEvent{
		User: ServiceAccount("muster-system", "muster-syncer"), UserAgent: "syncer/v0", Verb: "patch",
		Group: "fleet.cattle.io", Resource: "clusters", Subresource: "status", Namespace: "team", Name: "one",
		URI: "/apis/fleet.cattle.io/v1alpha1/namespaces/team/clusters/one/status?fieldManager=x", Code: 403, Reason: "nobody said so",
		Received: received, Completed: received.Add(250 * time.Millisecond),
	}
	if diff := cmp.Diff(want, all[0]); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	for name, filter := range map[string]AuditFilter{
		"user":  {User: "admin"},
		"since": {Since: received.Add(time.Second)},
		"where": {Where: func(e AuditEvent) bool { return e.Code < 400 }},
	} {
		if got, err := readAudit(strings.NewReader(auditLines), filter); err != nil || len(got) != 1 || got[0].User != "admin" {
			t.Errorf("%s: got %v (%v)", name, got, err)
		}
	}
	if got, err := readAudit(strings.NewReader(auditLines), AuditFilter{Until: received}); err != nil || len(got) != 1 || got[0].Code != 403 {
		t.Errorf("until: got %v (%v)", got, err)
	}
}

// A tail reads every line once, one that is being written when it is whole.
func TestAuditTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	tail := &AuditTail{path: path}
	var users []string
	for _, written := range []string{auditLines, auditLines + `","user":{"username":"late"}}` + "\n"} {
		if err := os.WriteFile(path, []byte(written), 0o600); err != nil {
			t.Fatal(err)
		}
		events, err := tail.Read(AuditFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			users = append(users, event.User)
		}
	}
	if diff := cmp.Diff([]string{ServiceAccount("muster-system", "muster-syncer"), "admin", "late"}, users); diff != "" {
		t.Error(diff)
	}
}
