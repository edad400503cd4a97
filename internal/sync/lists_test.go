package sync

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// listing is a cache, and the informer of a kind, whose first list comes when a test says so.
type listing struct {
	cache.Cache
	cache.Informer
	done map[string]bool
	kind string
}

func (l listing) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return listing{done: l.done, kind: object.GetObjectKind().GroupVersionKind().Kind}, nil
}

func (l listing) HasSynced() bool { return l.done[l.kind] }

func TestLists(t *testing.T) {
	now := time.Now()
	objects := listing{done: map[string]bool{"Listed": true}}
	lists := newLists(objects)
	lists.now = func() time.Time { return now }
	kind := func(name string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: "g", Version: "v1", Kind: name}
	}
	cluster := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "team", Name: name} }
	need := func(kindName, clusterName string) error {
		return lists.need(t.Context(), kind(kindName), cluster(clusterName))
	}
	wantReady := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, cluster := range lists.ready() {
			got = append(got, cluster.GetName())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: ready are %v, want %v", when, got, want)
		}
	}

	if err := need("Listed", "one"); err != nil {
		t.Errorf("a kind that is listed: %v", err)
	}
	for _, name := range []string{"one", "two", "one"} {
		if err := need("Slow", name); !errors.Is(err, errSyncing) {
			t.Errorf("a kind that is being listed: %v", err)
		}
	}
	if err := need("Slower", "three"); !errors.Is(err, errSyncing) {
		t.Errorf("a kind that is being listed: %v", err)
	}
	wantReady("before any list is there")
	objects.done["Slow"] = true
	wantReady("after the list", "one", "two")
	wantReady("after all were told")
	if err := need("Slow", "one"); err != nil {
		t.Errorf("a kind that is listed now: %v", err)
	}

	now = now.Add(listedPatience + time.Second)
	wantReady("when patience is over", "three")
	if err := need("Slower", "three"); err == nil || errors.Is(err, errSyncing) || !strings.Contains(err.Error(), "has not listed Slower.g in 2m1s") {
		t.Errorf("a kind that is never listed: %v", err)
	}
}

// A Cluster that comes back keeps the priority it has in the queue: what was changed by
// somebody is looked at before the thousands that a start looks at.
func TestAtItsOwnPriority(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	request := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}}
	}
	for name, priority := range map[string]int{"old": handler.LowPriority, "changed": 0} {
		queue.AddWithOpts(priorityqueue.AddOpts{After: time.Hour, Priority: ptr.To(priority)}, request(name))
	}
	for _, name := range []string{"old", "changed"} {
		object := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		atItsOwnPriority.Generic(t.Context(), event.GenericEvent{Object: object}, queue)
	}
	for _, want := range []struct {
		name     string
		priority int
	}{{"changed", 0}, {"old", handler.LowPriority}} {
		got, priority, _ := queue.GetWithPriority()
		if got != request(want.name) || priority != want.priority {
			t.Errorf("%s at %d, want %s at %d", got.Name, priority, want.name, want.priority)
		}
	}
}
