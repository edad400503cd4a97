package sync

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Whatever the order of events, the queue first returns Clusters that have changed, and unimported Clusters found at a start;
// then imported Clusters found at a start, Clusters concerned by another object's change, and Clusters that have failed.
func TestPriorities(t *testing.T) {
	request := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}}
	}
	object := func(name string, imported metav1.ConditionStatus) client.Object {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, ResourceVersion: "1"}}
		if imported != "" {
			cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: imported}}
		}
		return cluster
	}
	all := func(names ...string) handler.MapFunc {
		return func(context.Context, client.Object) []reconcile.Request {
			var result []reconcile.Request
			for _, name := range names {
				result = append(result, request(name))
			}
			return result
		}
	}
	changed := object("class", "")
	changed.SetResourceVersion("2")
	change := event.UpdateEvent{ObjectOld: object("class", ""), ObjectNew: changed}
	seen := func(name string, imported metav1.ConditionStatus, isInInitialList bool) func(priorityqueue.PriorityQueue[reconcile.Request]) {
		return func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			for _, each := range []handler.EventHandler{&handler.EnqueueRequestForObject{}, notImportedFirst} {
				each.Create(t.Context(), event.CreateEvent{Object: object(name, imported), IsInInitialList: isInInitialList}, queue)
			}
		}
	}
	events := map[string]func(queue priorityqueue.PriorityQueue[reconcile.Request]){
		"failed": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(lowPriority)}, request("failed"))
		},
		"of a class": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			atLowPriority(all("of a class", "changed", "new")).Update(t.Context(), change, queue)
		},
		"of an object that is found": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			atLowPriority(all("of an object that is found")).Create(t.Context(), event.CreateEvent{Object: changed, IsInInitialList: true}, queue)
		},
		"new":          seen("new", "", true),
		"not imported": seen("not imported", metav1.ConditionFalse, true),
		"imported":     seen("imported", metav1.ConditionTrue, true),
		"created":      seen("created", "", false),
		"changed":      func(queue priorityqueue.PriorityQueue[reconcile.Request]) { queue.Add(request("changed")) },
		"of its own object": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			atLowPriority(all("of its own object", "of its own object")).Update(t.Context(), change, queue) // By its name, and as an owner.
		},
	}
	want := map[string]int{
		"changed": 0, "of its own object": 0, "new": 0, "not imported": 0, "created": 0,
		"imported": lowPriority, "of a class": lowPriority, "of an object that is found": lowPriority, "failed": lowPriority,
	}
	for range 20 { // The order of a map differs.
		queue := priorityqueue.New[reconcile.Request]("test")
		for _, happens := range events {
			happens(queue)
		}
		last := 0
		for range events {
			got, priority, _ := queue.GetWithPriority()
			if priority != want[got.Name] || priority > last {
				t.Errorf("%q has priority %d after %d, want %d", got.Name, priority, last, want[got.Name])
			}
			last = priority
		}
		queue.ShutDown()
	}
}

// Clusters with the same priority come in the order in which they were enqueued: a Cluster that fails again and again does
// not delay the Clusters found at a start.
func TestFailedComesLast(t *testing.T) {
	queue := priorityqueue.New("test", func(o *priorityqueue.Opts[reconcile.Request]) {
		o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Nanosecond, time.Nanosecond)
	})
	defer queue.ShutDown()
	request := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}}
	}
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(lowPriority)}, request("a"), request("b"), request("c"))
	var order []string
	for range 5 {
		got, priority, _ := queue.GetWithPriority()
		if order = append(order, got.Name); got.Name == "a" { // As controller-runtime does it after an error.
			queue.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: new(priority)}, got)
		}
		queue.Done(got)
	}
	if want := []string{"a", "b", "c", "a", "a"}; !slices.Equal(order, want) {
		t.Errorf("they come as %q, want %q", order, want)
	}
}

// A controller may have a queue without priorities: its options say so.
func TestQueueWithoutPriorities(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	atLowPriority(itself).Create(t.Context(), event.CreateEvent{Object: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}}}, queue)
	if queue.Len() != 1 {
		t.Errorf("%d are enqueued", queue.Len())
	}
}
