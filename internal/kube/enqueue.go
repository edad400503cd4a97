package kube

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Enqueue adds requests to a controller's queue at a priority; nil for the one of the event. A queue without priorities, which
// a controller has if its options say so, gets them, too.
func Enqueue(queue workqueue.TypedRateLimitingInterface[reconcile.Request], priority *int, requests ...reconcile.Request) {
	if its, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		its.AddWithOpts(priorityqueue.AddOpts{Priority: priority}, requests...)
		return
	}
	for _, request := range requests {
		queue.Add(request)
	}
}
