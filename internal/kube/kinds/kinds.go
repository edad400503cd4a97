// Package kinds watches kinds that the API server may serve later than the program starts, or never. It decides
// when to ask again; what to do with the objects is up to its callers.
package kinds

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// PollInterval is how often the API server is asked what no event tells: whether it serves a kind now.
	PollInterval = 2 * time.Second
	// Patience is how long the first list of a kind may take before a Cluster that has a report of a better time reports
	// that: a list says nothing of its progress, and thousands of objects take a while at a start, which is to write nothing.
	// It is also how long an informer waits after a denied first list, because RBAC has no event: its own backoff begins anew
	// every 2 minutes, and asks every 19 s.
	Patience = 30 * time.Second
)

// WaitServed returns when nothing is missing, or with the context's error. It logs what is missing whenever that
// changes.
func WaitServed(ctx context.Context, missing func(context.Context) (string, error)) error {
	reported := ""
	return wait.PollUntilContextCancel(ctx, PollInterval, true, func(ctx context.Context) (bool, error) {
		now, err := missing(ctx)
		if err != nil {
			now = err.Error()
		}
		if now != reported {
			reported = now
			ctrl.LoggerFrom(ctx).Info("Waiting for kinds to be served", "missing", now)
		}
		return now == "", nil
	})
}

// Missing names the kinds that the API server does not serve, or returns "".
func Missing(mapper meta.RESTMapper, kinds ...schema.GroupVersionKind) string {
	var missing []string
	for _, kind := range kinds {
		if _, err := mapper.RESTMapping(kind.GroupKind(), kind.Version); err != nil {
			missing = append(missing, kind.GroupKind().String())
		}
	}
	slices.Sort(missing)
	return strings.Join(missing, ", ")
}

// NewCache returns a new cache, which passes the errors of its lists and watches to a handler.
type NewCache func(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error)

// CachesOf returns caches that use the connections of a manager, or of anything like it. A read of a kind that is not
// watched is an error, and starts no watch.
func CachesOf(mgr ctrl.Manager, options cache.Options) NewCache {
	options.Scheme, options.Mapper, options.HTTPClient = mgr.GetScheme(), mgr.GetRESTMapper(), mgr.GetHTTPClient()
	options.ReaderFailOnMissingInformer = true
	return func(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
		its := options
		its.DefaultWatchErrorHandler = failed
		return cache.New(mgr.GetConfig(), its)
	}
}

// Kind is a kind to be watched.
type Kind struct {
	// Object returns an object of the kind. It may ask discovery.
	Object  func() (client.Object, error)
	Indexes map[string]client.IndexerFunc
}

// Of returns the kind of an object.
func Of(object client.Object, indexes map[string]client.IndexerFunc) Kind {
	return Kind{func() (client.Object, error) { return object, nil }, indexes}
}

// Listed is the state of a watch: a cache with all objects of the kind, and its informer; or the reason why there is
// none yet.
type Listed struct {
	Objects  cache.Cache
	Informer cache.Informer
	Err      error
}

// Watch watches a kind in a cache of its own until the context ends, and calls changed once the cache holds all
// objects. Before, it calls changed when the kind cannot be listed for a new reason: it is not served, or the API
// server denies the list. Both are tried again.
func Watch(ctx context.Context, newCache NewCache, kind Kind, changed func(Listed)) {
	last := ""
	tell := func(listed Listed) {
		if err := listed.Err; err == nil || err.Error() != last && ctx.Err() == nil {
			last = fmt.Sprint(err)
			changed(listed)
		}
	}
	// The error is the context's.
	_ = wait.DelayFunc(func() time.Duration { return PollInterval }).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		listed := list(ctx, newCache, kind, tell)
		tell(listed)
		return listed.Err == nil, nil
	})
}

// list returns when a cache holds all objects of a kind, or when only another attempt can help. The cache itself repeats a
// list that fails; list tells if it is denied. A new cache for each attempt would leave a goroutine behind if it has
// DefaultNamespaces.
func list(ctx context.Context, newCache NewCache, kind Kind, tell func(Listed)) (listed Listed) {
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		if listed.Err != nil {
			stop()
		}
	}()
	object, err := kind.Object()
	if err != nil {
		return Listed{Err: err}
	}
	listing, end := context.WithCancel(ctx)
	defer end()
	denied := make(chan error)
	objects, err := newCache(func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		if !apierrors.IsForbidden(err) || listing.Err() != nil {
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
			return
		}
		select {
		case denied <- err:
		case <-listing.Done():
		}
		select { // Only this kind waits.
		case <-listing.Done():
		case <-time.After(Patience):
		}
	})
	if err != nil {
		return Listed{Err: fmt.Errorf("creating a cache: %w", err)}
	}
	go func() {
		_ = objects.Start(ctx) // It fails only if it has been started before.
	}()
	informer, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	for name, values := range kind.Indexes {
		if err == nil {
			err = objects.IndexField(ctx, object, name, values)
		}
	}
	if err != nil {
		return Listed{Err: err}
	}
	for {
		select {
		case <-informer.HasSyncedChecker().Done():
			return Listed{Objects: objects, Informer: informer}
		case err := <-denied:
			tell(Listed{Err: err})
		case <-ctx.Done():
			return Listed{Err: ctx.Err()}
		}
	}
}
