package sync

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Whatever the order of events, the queue first returns Clusters that have changed, then unimported
// Clusters found at a start, then Clusters found at a start or concerned by another object's change,
// then Clusters that have failed.
func TestPriorities(t *testing.T) {
	request := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}}
	}
	object := func(name string) client.Object {
		return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, ResourceVersion: "1"}}
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
	changed := object("class")
	changed.SetResourceVersion("2")
	change := event.UpdateEvent{ObjectOld: object("class"), ObjectNew: changed}
	events := map[string]func(queue priorityqueue.PriorityQueue[reconcile.Request]){
		"failed": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(lastPriority)}, request("failed"))
		},
		"of a class": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			behind(all("of a class", "changed", "new")).Update(t.Context(), change, queue)
		},
		"of an object": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			behindIfMany(all("of an object", "changed", "new")).Update(t.Context(), change, queue)
		},
		"of an object that is found": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			behindIfMany(all("of an object that is found")).Create(t.Context(), event.CreateEvent{Object: changed, IsInInitialList: true}, queue)
		},
		"new": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			for _, each := range []handler.EventHandler{&handler.EnqueueRequestForObject{}, enqueueAt(itself, unimportedPriority)} {
				each.Create(t.Context(), event.CreateEvent{Object: object("new"), IsInInitialList: true}, queue)
			}
		},
		"changed": func(queue priorityqueue.PriorityQueue[reconcile.Request]) { queue.Add(request("changed")) },
		"of its own object": func(queue priorityqueue.PriorityQueue[reconcile.Request]) {
			behindIfMany(all("of its own object")).Update(t.Context(), change, queue)
		},
	}
	want := map[string]int{
		"changed": 0, "of its own object": 0, "new": unimportedPriority, "of a class": handler.LowPriority, "of an object": handler.LowPriority,
		"of an object that is found": handler.LowPriority, "failed": lastPriority,
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

// A controller may have a queue without priorities: its options say so.
func TestQueueWithoutPriorities(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	behind(itself).Create(t.Context(), event.CreateEvent{Object: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}}}, queue)
	if queue.Len() != 1 {
		t.Errorf("%d are enqueued", queue.Len())
	}
}
