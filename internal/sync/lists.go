package sync

import (
	"context"
	"errors"
	"fmt"
	gosync "sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
}

type list struct {
	informer cache.Informer
	since    time.Time
	waiting  map[types.NamespacedName]struct{}
}

func newLists(objects cache.Cache) *lists {
	return &lists{cache: objects, now: time.Now, complete: make(objectEvents), kinds: map[schema.GroupVersionKind]*list{}}
}

// need returns nil if all objects of a kind are in the cache. If not, it returns
// errSyncing and notes that the Cluster waits for them, or, after listedPatience, an
// error that says what is wrong.
func (l *lists) need(ctx context.Context, gvk schema.GroupVersionKind, cluster types.NamespacedName) error {
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(gvk)
	informer, err := l.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil || informer.HasSynced() {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.kinds[gvk]
	if !ok {
		known = &list{informer: informer, since: l.now(), waiting: map[types.NamespacedName]struct{}{}}
		l.kinds[gvk] = known
	}
	if waited := l.now().Sub(known.since); waited > listedPatience {
		return fmt.Errorf("the API server has not listed %s in %s; its log, or that of the kind's conversion webhook, says why",
			gvk.GroupKind(), waited.Round(time.Second))
	}
	known.waiting[cluster] = struct{}{}
	return errSyncing
}

// Start brings Clusters back until the context ends. It is a manager's Runnable.
func (l *lists) Start(ctx context.Context) error {
	return feed(ctx, listedInterval, l.ready, func(client.Object) objectEvents { return l.complete })
}

// ready returns, once, the Clusters whose wait is over.
func (l *lists) ready() []client.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ready []client.Object
	for _, kind := range l.kinds {
		if len(kind.waiting) == 0 || !kind.informer.HasSynced() && l.now().Sub(kind.since) <= listedPatience {
			continue
		}
		for key := range kind.waiting {
			cluster := &clusterv1.Cluster{}
			cluster.Namespace, cluster.Name = key.Namespace, key.Name
			ready = append(ready, cluster)
		}
		kind.waiting = map[types.NamespacedName]struct{}{}
	}
	return ready
}

// atItsOwnPriority enqueues an object without raising the priority that it has in the
// queue already: thousands that come back must not stand before one that has just changed.
var atItsOwnPriority = handler.Funcs{
	GenericFunc: func(_ context.Context, e event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}
		if prioritized, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
			prioritized.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, request)
			return
		}
		queue.Add(request)
	},
}
