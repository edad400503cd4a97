package sync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	gosync "sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// listedInterval is how often is looked whether the first list of a kind is there.
	listedInterval = 200 * time.Millisecond
	// listedPatience is how long the first list of a kind may take until its absence is
	// reported. Thousands of control planes take a while.
	listedPatience = 2 * time.Minute
)

// errSyncing says that a kind was not read before and is being listed. It is nobody's
// fault: nothing is reported, and the Cluster is looked at again when the list is there.
var errSyncing = errors.New("the objects that the Cluster refers to are being listed")

// lists are the first lists of the kinds that Clusters refer to. A Cluster that needs one
// that is not there yet is put aside until it is, so that workers are free for others,
// and a start with thousands of Clusters does not look at them again and again.
type lists struct {
	cache cache.Cache
	now   func() time.Time
	// complete brings back Clusters that have waited.
	complete objectEvents

	mu    gosync.Mutex
	kinds map[schema.GroupVersionKind]*list
	// left are the Clusters that have waited for a kind that is not read any more.
	left map[types.NamespacedName]struct{}
}

type list struct {
	informer cache.Informer
	since    time.Time
	waiting  map[types.NamespacedName]struct{}
	// late are the Clusters that were told that patience is over; they still wait.
	late map[types.NamespacedName]struct{}
}

func newLists(objects cache.Cache) *lists {
	return &lists{cache: objects, now: time.Now, complete: make(objectEvents), kinds: map[schema.GroupVersionKind]*list{}, left: map[types.NamespacedName]struct{}{}}
}

// need returns nil if all objects of a kind are in the cache. If not, it returns
// errSyncing and notes that the Cluster waits for them, or, after listedPatience, an
// error that says what is wrong.
func (l *lists) need(ctx context.Context, gvk schema.GroupVersionKind, cluster types.NamespacedName) error {
	informer, err := l.cache.GetInformer(ctx, ofKind(gvk), cache.BlockUntilSynced(false))
	if err != nil || informer.HasSynced() {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.kinds[gvk]
	if !ok {
		known = &list{informer: informer, since: l.now(), waiting: map[types.NamespacedName]struct{}{}, late: map[types.NamespacedName]struct{}{}}
		l.kinds[gvk] = known
	}
	if waited := l.now().Sub(known.since); waited > listedPatience {
		known.late[cluster] = struct{}{}
		return fmt.Errorf("%w: the API server has not listed %s in %s; its log, or that of the kind's conversion webhook, says why",
			errUnlisted, gvk.GroupKind(), waited.Round(time.Second))
	}
	known.waiting[cluster] = struct{}{}
	return errSyncing
}

// Start brings Clusters back until the context ends. It is a manager's Runnable.
func (l *lists) Start(ctx context.Context) error {
	return feed(ctx, listedInterval, l.ready, func(client.Object) objectEvents { return l.complete })
}

// forget brings back who waits for a kind in a version that is not read any more.
func (l *lists) forget(gvk schema.GroupVersionKind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.kinds[gvk]; ok {
		maps.Copy(l.left, known.waiting)
		maps.Copy(l.left, known.late)
		delete(l.kinds, gvk)
	}
}

// ready returns, once, the Clusters whose wait is over.
func (l *lists) ready() []client.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	ready := taken(l.left)
	for _, kind := range l.kinds {
		switch {
		case len(kind.waiting) == 0 && len(kind.late) == 0:
		case kind.informer.HasSynced():
			ready = append(ready, append(taken(kind.waiting), taken(kind.late)...)...)
		case l.now().Sub(kind.since) > listedPatience:
			ready = append(ready, taken(kind.waiting)...)
		}
	}
	return ready
}

// taken empties a set of keys of Clusters, and returns what was in it.
func taken(keys map[types.NamespacedName]struct{}) []client.Object {
	var result []client.Object
	for key := range keys {
		cluster := &clusterv1.Cluster{}
		cluster.Namespace, cluster.Name = key.Namespace, key.Name
		result = append(result, cluster)
	}
	clear(keys)
	return result
}

// atItsOwnPriority enqueues an object without raising the priority that it has in the
// queue already: thousands that come back must not stand before one that has just changed.
var atItsOwnPriority = handler.Funcs{
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

// behind enqueues what an event concerns behind what has itself changed: there may be
// thousands.
func behind(of handler.MapFunc) handler.Funcs {
	enqueue := func(ctx context.Context, object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		addBehind(queue, of(ctx, object)...)
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
