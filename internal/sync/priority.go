package sync

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Priorities below 0, which is that of an object that has itself changed. controller-runtime
// gives handler.LowPriority to what a start or a resync finds.
const (
	// unimportedPriority is that of Clusters found at a start that are not imported yet.
	unimportedPriority = handler.LowPriority / 2
	// behindPriority is that of objects that a change elsewhere concerns, of which there may be
	// thousands, and of those that are polled.
	behindPriority = handler.LowPriority
	// lastPriority is that of what has failed: it is tried again behind what never had its turn.
	lastPriority = 2 * handler.LowPriority
)

// behind enqueues the objects that an event concerns behind those that have themselves changed.
func behind(concerned handler.MapFunc) handler.EventHandler {
	return enqueueAt(concerned, behindPriority)
}

// behindIfMany is behind, but one object that an event alone concerns counts as changed.
func behindIfMany(concerned handler.MapFunc) handler.EventHandler {
	return enqueued(concerned, func(count int) *int {
		if count == 1 {
			return nil // As the event itself: what a start finds is behind, too.
		}
		return new(behindPriority)
	})
}

// enqueueAt enqueues the objects that an event concerns at a priority.
func enqueueAt(concerned handler.MapFunc, priority int) handler.EventHandler {
	return enqueued(concerned, func(int) *int { return new(priority) })
}

func enqueued(concerned handler.MapFunc, priority func(count int) *int) handler.EventHandler {
	enqueue := func(ctx context.Context, object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		requests := concerned(ctx, object)
		// A controller's queue is one, unless its options say otherwise.
		queue.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(
			priorityqueue.AddOpts{Priority: priority(len(requests))}, requests...)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, queue)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.ObjectNew, queue)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, queue)
		},
	}
}

// itself is the map function of objects that an event is about.
func itself(_ context.Context, object client.Object) []reconcile.Request {
	return requests(client.ObjectKeyFromObject(object))
}
