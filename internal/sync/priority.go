package sync

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
)

// behindPriority is for objects that a change elsewhere concerns, and for polled and failed ones. It is the priority that
// controller-runtime gives to objects found by a start or a resync, below that of an object that has itself changed. Among
// themselves these come in the order in which they were enqueued, so what fails again and again delays nothing else.
const behindPriority = handler.LowPriority

// behind enqueues the objects that an event concerns, behind objects that have themselves changed: there may be thousands.
// A single one counts as changed.
func behind(concerned handler.MapFunc) handler.EventHandler {
	return enqueued(concerned, func(count int) priorityqueue.AddOpts {
		if count == 1 {
			return priorityqueue.AddOpts{} // The event's own priority, which is low for objects found at a start.
		}
		return priorityqueue.AddOpts{Priority: new(behindPriority)}
	})
}

// first enqueues Clusters found at a start whose status does not say that they are imported, as if they had changed: they
// need not wait for the thousands of imported Clusters.
var first = handler.Funcs{CreateFunc: func(_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if e.IsInInitialList && !meta.IsStatusConditionTrue(e.Object.(*clusterv1.Cluster).Status.Conditions, addonsv1.FleetImportedCondition) {
		kube.Enqueue(queue, priorityqueue.AddOpts{Priority: new(0)}, requests(client.ObjectKeyFromObject(e.Object))...)
	}
}}

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
