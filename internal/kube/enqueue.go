package kube

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Enqueue adds requests to a controller's queue; without a priority, they get the one of the event. A queue without priorities,
// which a controller has if its options say so, gets them, too.
func Enqueue(queue workqueue.TypedRateLimitingInterface[reconcile.Request], options priorityqueue.AddOpts, requests ...reconcile.Request) {
	if its, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		its.AddWithOpts(options, requests...)
		return
	}
	for _, request := range requests {
		queue.AddAfter(request, options.After)
	}
}
