package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

func TestObjects(t *testing.T) {
	g := &generator{prefix: "bench", namespaces: 3, classes: 2}
	for file, size := range map[string]struct{ least, most int }{
		controlPlaneFile: {11 << 10, 13 << 10}, infrastructureFile: {0, 1 << 10}, clusterFile: {1 << 10, 3 << 10},
	} {
		object := g.object(file, 4)
		if object.GetNamespace() != "bench-01" || object.GetName() != "cluster-00004" {
			t.Errorf("%s is %s/%s", file, object.GetNamespace(), object.GetName())
		}
		content, err := object.MarshalJSON()
		if err != nil || len(content) < size.least || len(content) > size.most {
			t.Errorf("%s has %d bytes (%v)", file, len(content), err)
		}
	}
	class, _, _ := unstructured.NestedStringMap(g.object(clusterFile, 4).Object, "spec", "topology", "classRef")
	if class["name"] != "class-1" || class["namespace"] != classNamespace {
		t.Errorf("the class is %v", class)
	}
}

func TestKindOfRequest(t *testing.T) {
	for name, test := range map[string]struct {
		event stack.AuditEvent
		want  string
	}{
		"apply":                   {stack.AuditEvent{Verb: "patch", Resource: "clusters", Namespace: "a", Name: "b"}, write},
		"event":                   {stack.AuditEvent{Verb: "create", Resource: "events", Namespace: "a"}, write},
		"lease":                   {stack.AuditEvent{Verb: "update", Resource: "leases", Namespace: "muster-system"}, own},
		"who may":                 {stack.AuditEvent{Verb: "create", Resource: "subjectaccessreviews"}, own},
		"discovery":               {stack.AuditEvent{Verb: "get"}, own},
		"get":                     {stack.AuditEvent{Verb: "get", Resource: "clusters", Namespace: "a", Name: "b"}, read},
		"lists without a reason":  {stack.AuditEvent{Verb: "list", Resource: "clusters"}, read},
		"a watch that has ended":  {stack.AuditEvent{Verb: "watch", Resource: "clusters"}, own},
		"status of its own thing": {stack.AuditEvent{Verb: "patch", Resource: "fleetaddonconfigs", Subresource: "status"}, own},
	} {
		if got := kindOf(test.event); got != test.want {
			t.Errorf("%s is %s, want %s", name, got, test.want)
		}
	}
	all := requests{{Verb: "list", Resource: "clusters"}, {Verb: "list", Resource: "clusters", Namespace: "a"}}
	if got := all.afterStart(); len(got) != 1 || got[0].Namespace != "a" {
		t.Errorf("what is left of a start are %v", got)
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
		apply("one", -1, 1, 200), // It precedes the change.
		apply("one", 1, 2, 409),
		apply("one", 3, 5, 200),
		apply("one", 5, 6, 200),
		apply("fast", 1, 2, 200),
		apply("other", 1, 2, 200),
	}
	changes := map[client.ObjectKey]request{key("one"): {at(0), at(1)}, key("fast"): {at(0), at(3)}, key("two"): {at(0), at(1)}}
	got, err := all.latencies(changes, map[client.ObjectKey]time.Time{key("one"): {}, key("fast"): {}})
	slices.Sort(got)
	if want := []time.Duration{0, 4 * time.Second}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
	if _, err := all.latencies(changes, map[client.ObjectKey]time.Time{key("two"): {}}); err == nil {
		t.Error("one that was never written is not missed")
	}
	if _, err := all.latencies(changes, map[client.ObjectKey]time.Time{key("other"): {}}); err == nil {
		t.Error("one that was never changed is not missed")
	}
}

func TestBetween(t *testing.T) {
	begin := time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	asked := func(seconds int) stack.AuditEvent {
		return stack.AuditEvent{Verb: "patch", Resource: "bundles", Received: at(seconds)}
	}
	all := requests{asked(0), asked(1), asked(2), {Verb: "update", Resource: "leases", Received: at(2)}, asked(3), asked(9)}
	got := all.between([]time.Time{at(1), at(3), at(5), at(6)})
	if want := []int{2, 1, 0}; !slices.Equal(got, want) || median(got) != 1 {
		t.Errorf("%v, want %v", got, want)
	}
	if f := value("a", "", median(nil)).atMost(1); f.verdict != missed {
		t.Error("the median of nothing reaches a bar")
	}
}

func TestReconciles(t *testing.T) {
	got, err := reconcilesIn(`# HELP controller_runtime_reconcile_total Total number of reconciliations per controller
controller_runtime_reconcile_total{controller="cluster",result="error"} 1
controller_runtime_reconcile_total{controller="cluster",result="requeue_after"} 500
controller_runtime_reconcile_total{controller="cluster",result="success"} 5000
controller_runtime_reconcile_total{controller="namespace",result="success"} 10
`)
	if err != nil || got != 5500 {
		t.Errorf("got %d (%v)", got, err)
	}
}

func TestWaitsDuringAStart(t *testing.T) {
	begin := time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: "new-00", Name: name} }
	initialized := map[client.ObjectKey]request{key("early"): {at(1), at(2)}, key("late"): {at(11), at(12)}}
	written := map[client.ObjectKey]request{key("early"): {at(12), at(13)}, key("late"): {at(12), at(14)}}
	for name, test := range map[string]struct {
		none  int
		waits []time.Duration
	}{
		"others came first": {10, []time.Duration{2 * time.Second, 3 * time.Second}},
		"it was the first":  {20, []time.Duration{0, time.Second}},
	} {
		got := waits(at(test.none), initialized, written)
		if slices.Sort(got); !slices.Equal(got, test.waits) {
			t.Errorf("%s: %v, want %v", name, got, test.waits)
		}
	}
}

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, time.Duration(i)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0: 1, .5: 50, .99: 99, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if f := value("a", "ms", quantile(nil, .5)).against(1).ratioAtMost(3); f.verdict != missed {
		t.Error("the quantile of nothing reaches a bar")
	}
}

func TestVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		figure figure
		want   string
	}{
		"no bar":                  {value("a", "ms", 1), ""},
		"at the limit":            {value("a", "MiB", 300).atMost(300), reached},
		"over the limit":          {value("a", "MiB", 300.1).atMost(300), missed},
		"ratio reached":           {value("a", "/s", 70).against(100).ratioAtLeast(.7), reached},
		"ratio missed":            {value("a", "/s", 69).against(100).ratioAtLeast(.7), missed},
		"at least, to nothing":    {value("a", "/s", 69).against(0).ratioAtLeast(3), missed},
		"ratio without baseline":  {value("a", "ms", 1).ratioAtMost(3), missed},
		"ratio under upper limit": {value("a", "ms", 29).against(10).ratioAtMost(3), reached},
	} {
		if test.figure.verdict != test.want {
			t.Errorf("%s: %q, want %q", name, test.figure.verdict, test.want)
		}
	}
}

func TestPrint(t *testing.T) {
	all := table{title: "Import"}
	all.note("%d clusters", 2000)
	all.add(value("throughput", "/s", 212.5).against(250).ratioAtLeast(.7), value("GET", "", 0).atMost(0), value("p50", "ms", 4.567))
	var out strings.Builder
	all.print(&out)
	if diff := cmp.Diff(`
### Import

- 2000 clusters

|            | value   | baseline | ratio | bar     |    |
|---         |--:      |--:       |--:    |---      |--- |
| throughput | 212 /s  | 250 /s   | 0.85  | ≥ 0.7 × | ok |
| GET        | 0       |          |       | ≤ 0     | ok |
| p50        | 4.57 ms |          |       |         |    |
`, out.String()); diff != "" {
		t.Error(diff)
	}
}
