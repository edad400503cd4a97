package sync

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/kube"
)

// These priorities are below 0, the priority of an object that has itself changed. controller-runtime
// gives handler.LowPriority to objects found by a start or a resync.
const (
	// unimportedPriority is for Clusters found at a start that are not imported yet.
	unimportedPriority = handler.LowPriority / 2
	// behindPriority is for polled objects, and for objects that a change elsewhere concerns. There
	// may be thousands.
	behindPriority = handler.LowPriority
	// lastPriority is for retries after a failure: they queue behind objects that have not been
	// reconciled yet.
	lastPriority = 2 * handler.LowPriority
)

// behind enqueues the objects that an event concerns, behind objects that have themselves changed.
func behind(concerned handler.MapFunc) handler.EventHandler {
	return enqueueAt(concerned, behindPriority)
}

// behindIfMany works like behind, unless the event concerns a single object, which counts as changed.
func behindIfMany(concerned handler.MapFunc) handler.EventHandler {
	return enqueued(concerned, func(count int) priorityqueue.AddOpts {
		if count == 1 {
			return priorityqueue.AddOpts{} // The event's own priority, which is low for objects found at a start.
		}
		return priorityqueue.AddOpts{Priority: new(behindPriority)}
	})
}

// enqueueAt enqueues the objects that an event concerns at a priority.
func enqueueAt(concerned handler.MapFunc, priority int) handler.EventHandler {
	return enqueued(concerned, func(int) priorityqueue.AddOpts { return priorityqueue.AddOpts{Priority: new(priority)} })
}

// passInterval is how long the events of the Clusters of a namespace are collected: a pass lists them all, and an import of
// thousands causes an event for each.
const passInterval = 500 * time.Millisecond

// soon enqueues the objects that an event concerns after the passInterval.
func soon(concerned handler.MapFunc) handler.EventHandler {
	return enqueued(concerned, func(int) priorityqueue.AddOpts { return priorityqueue.AddOpts{After: passInterval} })
}

func enqueued(concerned handler.MapFunc, options func(count int) priorityqueue.AddOpts) handler.EventHandler {
	enqueue := func(ctx context.Context, object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		requests := concerned(ctx, object)
		kube.Enqueue(queue, options(len(requests)), requests...)
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

// itself maps an event to the object that it is about.
func itself(_ context.Context, object client.Object) []reconcile.Request {
	return requests(client.ObjectKeyFromObject(object))
}
