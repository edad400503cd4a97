package kube

import (
	"time"

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

// LongestWait is how long, at most, a failed reconcile waits for the next try: no event says that a policy or a webhook that
// has refused something for hours refuses it no longer.
const LongestWait = time.Minute

// RateLimiter returns controller-runtime's default limiter, but with LongestWait instead of a quarter of an hour.
func RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, LongestWait)
}
