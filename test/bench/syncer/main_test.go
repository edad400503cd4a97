package main

import (
	"cmp"
	"os"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/report"
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

func TestCounts(t *testing.T) {
	got, err := countsIn(`# HELP controller_runtime_reconcile_total Total number of reconciliations per controller
controller_runtime_reconcile_total{controller="cluster",result="error"} 1
controller_runtime_reconcile_total{controller="cluster",result="requeue_after"} 500
controller_runtime_reconcile_total{controller="cluster",result="success"} 5000
controller_runtime_reconcile_total{controller="namespace",result="success"} 10
controller_runtime_active_workers{controller="cluster"} 7
controller_runtime_active_workers{controller="namespace"} 0
workqueue_depth{controller="cluster",name="cluster",priority="-100"} 30
workqueue_depth{controller="cluster",name="cluster",priority="0"} 2
workqueue_depth{controller="clustergroup",name="clustergroup",priority="0"} 1
muster_clusters{state="imported"} 4998
muster_clusters{state="pending"} 2
muster_clusters_by_reason{reason="Imported"} 4998
`)
	if want := (counts{looks: 5501, imported: 4998, waiting: 40}); err != nil || got != want {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
}

func TestProgressIsOverWhenAllAreLookedAt(t *testing.T) {
	p := progress{from: counts{looks: 100}}
	for _, step := range []struct {
		now  counts
		over bool
	}{
		{counts{looks: 150, waiting: 50}, false},
		{counts{looks: 199}, false},
		{counts{looks: 200, waiting: 1}, false},
		{counts{looks: 201}, true},
	} {
		if p.over(step.now, 100) != step.over {
			t.Errorf("%+v: over is %v", step.now, !step.over)
		}
	}
}

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

func TestParseCPU(t *testing.T) {
	got, err := parseCPU([]byte("42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0"))
	if err != nil || got != 2*time.Second {
		t.Errorf("got %s (%v)", got, err)
	}
	if _, err := cpuOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  100 20 30 9999 888 1 2 47 0 0\ncpu0 1 2 3\n")
	if err != nil || got != 2*time.Second {
		t.Errorf("got %s (%v)", got, err)
	}
	if _, err := parseBusy("intr 1"); err == nil {
		t.Error("any line will do")
	}
}

func TestParts(t *testing.T) {
	for name, test := range map[string]struct {
		asked options
		want  []string // the first table of each part; nil is an error
	}{
		"everything": {options{}, []string{"throughput", "growth", "namespace", "charts"}},
		"one":        {options{only: "look"}, []string{"growth"}},
		"several":    {options{only: "latency,namespace"}, []string{"throughput", "namespace"}},
		"unknown":    {options{only: "look,fast"}, nil},
	} {
		parts, err := test.asked.parts()
		var got []string
		for _, part := range parts {
			got = append(got, part.tables[0])
		}
		if !slices.Equal(got, test.want) || (err == nil) != (test.want != nil) {
			t.Errorf("%s: %v (%v), want %v", name, got, err, test.want)
		}
	}
}

func TestWaitsDuringAStart(t *testing.T) {
	begin := time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: "canary-00", Name: name} }
	initialized := map[client.ObjectKey]request{key("early"): {at(1), at(2)}, key("late"): {at(11), at(12)}}
	written := map[client.ObjectKey]request{key("early"): {at(12), at(13)}, key("late"): {at(12), at(14)}}
	for name, test := range map[string]struct {
		none  int
		ready time.Duration
		waits []time.Duration
	}{
		"others were counted first": {10, 10 * time.Second, []time.Duration{2 * time.Second, 3 * time.Second}},
		"it was the first":          {20, 13 * time.Second, []time.Duration{0, time.Second}},
	} {
		d := during{}
		d.measure(begin, at(test.none), initialized, written)
		slices.Sort(d.waits)
		if d.ready != test.ready || d.first != 13*time.Second || !slices.Equal(d.waits, test.waits) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
