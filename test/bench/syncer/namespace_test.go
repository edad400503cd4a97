package main

import (
	"testing"
	"time"

	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
)

// An event that causes no request reaches its bar, and one that causes more with more
// Clusters does not.
func TestNamespaceTable(t *testing.T) {
	apply := stack.AuditEvent{Verb: "patch", Resource: "clusters", Namespace: "a", Name: "b"}
	small := crowd{n: 500, changed: cost{1, time.Millisecond, requests{apply}}, created: cost{1, time.Millisecond, nil}, deleted: cost{1, time.Millisecond, nil}}
	large := crowd{n: 5000, changed: cost{1, 2 * time.Millisecond, requests{apply, apply}}, created: cost{1, time.Millisecond, nil}, deleted: cost{1, time.Millisecond, nil}}
	want := map[string]string{
		"processor time: a Cluster's label changes, 500 Clusters":          "",
		"processor time: a Cluster's label changes, 5000 Clusters":         report.Short,
		"requests: a Cluster's label changes, 5000 Clusters":               report.Short,
		"processor time: a Cluster is created and imported, 5000 Clusters": report.OK,
		"requests: a Cluster is deleted, 5000 Clusters":                    report.OK,
	}
	found := 0
	for _, figure := range namespaceTables([]crowd{small, large})[0].Figures {
		verdict, asked := want[figure.Name]
		if !asked {
			continue
		}
		found++
		if figure.Verdict != verdict {
			t.Errorf("%s: %q, want %q", figure.Name, figure.Verdict, verdict)
		}
	}
	if found != len(want) {
		t.Errorf("%d of %d figures are there", found, len(want))
	}
}
