package queue

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
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
