package queue

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Last is the priority of what has failed: it is tried again behind what never had its turn.
const Last = 2 * handler.LowPriority

// AtItsOwnPriority enqueues an object without raising the priority that it has in the queue
// already: thousands that come back must not overtake one that has just changed.
var AtItsOwnPriority = handler.Funcs{
	GenericFunc: func(_ context.Context, e event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		addBehind(queue, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
	},
}

func addBehind(queue workqueue.TypedRateLimitingInterface[reconcile.Request], requests ...reconcile.Request) {
	if prioritized, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		prioritized.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, requests...)
		return
	}
	for _, request := range requests {
		queue.Add(request)
	}
}

// Behind enqueues what an event concerns behind what has itself changed: there may be
// thousands.
func Behind(of handler.MapFunc) handler.EventHandler {
	return toEach(func(ctx context.Context, object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		addBehind(queue, of(ctx, object)...)
	})
}

// First enqueues an object that is found at a start ahead of the others, and behind what has
// just changed.
var First = handler.Funcs{
	CreateFunc: func(_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}
		if prioritized, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
			prioritized.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority / 2)}, request)
			return
		}
		queue.Add(request)
	},
}

// toEach handles creation, the state after an update, and deletion alike.
func toEach(handle func(context.Context, client.Object, workqueue.TypedRateLimitingInterface[reconcile.Request])) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			handle(ctx, e.Object, queue)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			handle(ctx, e.ObjectNew, queue)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			handle(ctx, e.Object, queue)
		},
	}
}
