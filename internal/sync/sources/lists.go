package sources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/sync/queue"
)

const (
	// listedInterval is how often we check whether the first list of a kind is there.
	listedInterval = 200 * time.Millisecond
	// ListPatience is how long the first list of a kind may take until its absence is
	// reported. Thousands of control planes take a while.
	ListPatience = 2 * time.Minute
)

// ErrListing says that a kind was not read before and is being listed. It is not a failure:
// nothing is reported, and the Cluster is looked at again when the list is there.
var ErrListing = errors.New("the objects that the Cluster refers to are being listed")

// lists are the first lists of the kinds that Clusters refer to. A Cluster that needs one
// that is not there yet is put aside until it is, so that workers are free for others,
// and a start with thousands of Clusters does not look at them again and again.
type lists struct {
	cache cache.Cache
	now   func() time.Time
	// complete brings back Clusters that have waited.
	complete queue.Events

	mu    sync.Mutex
	kinds map[schema.GroupVersionKind]*list
	// left are the Clusters that have waited for a kind that is no longer read.
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
	return &lists{cache: objects, now: time.Now, complete: make(queue.Events), kinds: map[schema.GroupVersionKind]*list{}, left: map[types.NamespacedName]struct{}{}}
}

// need returns nil if all objects of a kind are in the cache. If not, it returns
// ErrListing and notes that the Cluster waits for them, or, after ListPatience, an
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
	if waited := l.now().Sub(known.since); waited > ListPatience {
		known.late[cluster] = struct{}{}
		return fmt.Errorf("%w: the API server has not listed %s in %s; its log, or that of the kind's conversion webhook, says why",
			errUnlisted, gvk.GroupKind(), waited.Round(time.Second))
	}
	known.waiting[cluster] = struct{}{}
	return ErrListing
}

// Start brings Clusters back until the context ends. It is a manager's Runnable.
func (l *lists) Start(ctx context.Context) error {
	return queue.Feed(ctx, listedInterval, l.ready, func(client.Object) queue.Events { return l.complete })
}

// forget brings back the Clusters that wait for a kind in a version that is no longer read.
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
		case l.now().Sub(kind.since) > ListPatience:
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
