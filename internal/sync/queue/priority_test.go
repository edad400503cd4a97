package queue

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

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
		AtItsOwnPriority.Generic(t.Context(), event.GenericEvent{Object: object}, queue)
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

// A Cluster that is found at a start and enqueued first is looked at before the others, but
// after one that has changed, and one that has failed after all, in whichever order the two handlers are called.
func TestFirst(t *testing.T) {
	for _, order := range [][]string{{"any", "first"}, {"first", "any"}} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			queue := priorityqueue.New[reconcile.Request]("test")
			defer queue.ShutDown()
			for _, name := range []string{"failed", "a", "b", "new"} {
				object := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
				found := event.CreateEvent{Object: object, IsInInitialList: true}
				if name == "failed" {
					queue.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(Last)}, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
					continue
				}
				for _, which := range order {
					switch {
					case which == "any":
						(&handler.EnqueueRequestForObject{}).Create(t.Context(), found, queue)
					case name == "new":
						First.Create(t.Context(), found, queue)
					}
				}
			}
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "changed"}})
			for _, want := range []string{"changed", "new", "a", "b", "failed"} {
				if got, priority, _ := queue.GetWithPriority(); got.Name != want {
					t.Errorf("%s at %d comes before %s", got.Name, priority, want)
				}
			}
		})
	}
}
