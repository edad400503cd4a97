package main

import (
	"cmp"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

func TestKindOfRequest(t *testing.T) {
	for name, test := range map[string]struct {
		event    stack.AuditEvent
		starting bool
		want     string
	}{
		"apply":                   {stack.AuditEvent{Verb: "patch", Resource: "clusters", Namespace: "a", Name: "b"}, false, write},
		"event":                   {stack.AuditEvent{Verb: "create", Resource: "events", Namespace: "a"}, false, write},
		"lease":                   {stack.AuditEvent{Verb: "update", Resource: "leases", Namespace: "muster-system"}, false, own},
		"may I":                   {stack.AuditEvent{Verb: "create", Resource: "selfsubjectaccessreviews"}, false, own},
		"discovery":               {stack.AuditEvent{Verb: "get"}, true, own},
		"get":                     {stack.AuditEvent{Verb: "get", Resource: "clusters", Namespace: "a", Name: "b"}, true, read},
		"informer lists":          {stack.AuditEvent{Verb: "list", Resource: "clusters"}, true, informer},
		"lists without a reason":  {stack.AuditEvent{Verb: "list", Resource: "clusters"}, false, read},
		"lists a namespace":       {stack.AuditEvent{Verb: "list", Resource: "bundledeployments", Namespace: "a"}, true, read},
		"a watch that has ended":  {stack.AuditEvent{Verb: "watch", Resource: "clusters"}, false, informer},
		"status of its own thing": {stack.AuditEvent{Verb: "patch", Resource: "fleetaddonconfigs", Subresource: "status"}, false, own},
	} {
		if got := kindOf(test.event, test.starting); got != test.want {
			t.Errorf("%s is %s, want %s", name, got, test.want)
		}
	}
}

func TestLatencies(t *testing.T) {
	begin := time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: "a", Name: name} }
	apply := func(name string, received, completed, code int) stack.AuditEvent {
		return stack.AuditEvent{Verb: "patch", Group: "fleet.cattle.io", Resource: "clusters", Namespace: "a", Name: name,
			Code: code, Received: at(received), Completed: at(completed)}
	}
	all := requests{
		apply("one", -1, 1, 200), // Before the change.
		apply("one", 1, 2, 409),
		apply("one", 3, 5, 200),
		apply("one", 5, 6, 200),
		apply("fast", 1, 2, 200),
		apply("other", 1, 2, 200),
	}
	changes := map[client.ObjectKey]request{key("one"): {at(0), at(1)}, key("fast"): {at(0), at(3)}}
	got, err := all.latencies(changes)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b latency) int { return cmp.Compare(a.written, b.written) })
	if diff := gocmp.Diff(latencies{{}, {asked: 2 * time.Second, written: 4 * time.Second}}, got, gocmp.AllowUnexported(latency{})); diff != "" {
		t.Error(diff)
	}
	changes[key("two")] = request{at(0), at(1)}
	if _, err := all.latencies(changes); err == nil {
		t.Error("one that was never written is not missed")
	}
	if got, want := all.String(), "5 patch clusters (Fleet), 1 patch clusters (Fleet) -> 409"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
