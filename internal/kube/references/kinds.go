package references

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/contract"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/kube"
)

// errMoved means that a kind must be read in another version than the watched one.
var errMoved = errors.New("the kind has moved to another version")

// errDropped means that the kind has been forgotten meanwhile.
var errDropped = errors.New("the kind has been dropped")

// kinds are the kinds to which Clusters refer. Each is watched before its first read, in the one version
// that its CRD declares for the Cluster API contract. Cluster API's ObjectTracker would forever watch
// the version that it saw first.
type kinds struct {
	cache   cache.Cache
	handler handler.EventHandler
	news    predicate.Predicate

	mu sync.Mutex
	// ctx and queue are the controller's; nil until it starts. It then reconciles every Cluster, so earlier
	// events can be dropped.
	ctx   context.Context //nolint:containedctx // the context of the controller that owns the queue
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// all has no kind without a CRD for long.
	all map[schema.GroupKind]*kind
}

type kind struct {
	// mu is held for reading while an object is read. The watch moves only while no reader holds mu, so that no
	// read restarts the informer that was just stopped.
	mu sync.RWMutex
	// watched is the watched version; empty if there is none.
	watched schema.GroupVersionKind
	// listed reports whether the events of the whole first list have been handled. since is when that list
	// began.
	listed interface{ HasSynced() bool }
	since  time.Time
	// dropped means that the kind is no longer in all, and must not be watched again.
	dropped bool
}

// isListed reports whether all objects of the kind are cached. The caller holds its lock.
func (k *kind) isListed() bool { return k.listed != nil && k.listed.HasSynced() }

// isReadable returns nil if all objects of the kind are cached. Before, it returns ErrListing or, after
// listPatience, an error that names the problem: a cached read would wait for a list that may never
// come. The caller holds the kind's lock.
func (k *kind) isReadable(now time.Time) error {
	if k.isListed() {
		return nil
	}
	waited := now.Sub(k.since)
	if waited <= listPatience {
		return &retryError{ErrListing, backoff(waited)}
	}
	return fmt.Errorf("the API server has not listed %s in %s; its log, or that of the kind's conversion webhook, says why",
		k.watched.GroupKind(), listPatience)
}

func newKinds(objects cache.Cache, handler handler.EventHandler) *kinds {
	return &kinds{
		cache: objects, handler: handler, all: map[schema.GroupKind]*kind{},
		news: predicate.And[client.Object](kube.CompactedChanged, notPaused),
	}
}

// notPaused drops updates of paused objects; it passes the end of a pause, creation and deletion.
var notPaused = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return !annotations.HasPaused(e.ObjectNew) },
}

// start makes the objects' events go into a controller's queue.
func (k *kinds) start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ctx, k.queue = ctx, queue
	return nil
}

func (k *kinds) of(group schema.GroupKind) *kind {
	k.mu.Lock()
	defer k.mu.Unlock()
	known, ok := k.all[group]
	if !ok {
		known = &kind{}
		k.all[group] = known
	}
	return known
}

// known returns a kind, or nil if it is unknown.
func (k *kinds) known(group schema.GroupKind) *kind {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[group]
}

func (k *kinds) list() []schema.GroupKind {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.all))
}

// drop forgets a kind and stops its watch, if holds returns true while no goroutine reads the kind. If
// one does, the kind stays until the next call.
func (k *kinds) drop(ctx context.Context, group schema.GroupKind, holds func(*kind) bool) {
	k.mu.Lock()
	known, ok := k.all[group]
	k.mu.Unlock()
	if !ok || !known.mu.TryLock() {
		return
	}
	defer known.mu.Unlock()
	if known.dropped || !holds(known) {
		return
	}
	if err := k.move(ctx, known, schema.GroupVersionKind{}, time.Time{}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "A kind without a CRD is still watched", "kind", group.String())
		return
	}
	known.dropped = true
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, group)
}

// move stops the watch of a kind and, unless the new version is empty, watches that. The caller holds
// the kind's lock.
func (k *kinds) move(ctx context.Context, kind *kind, to schema.GroupVersionKind, now time.Time) error {
	if kind.watched == to {
		return nil
	}
	if from := kind.watched; !from.Empty() {
		kind.watched = schema.GroupVersionKind{}
		ctrl.LoggerFrom(ctx).Info("Watching a kind no longer in this version", "kind", from.String())
		if err := k.cache.RemoveInformer(ctx, ofKind(from)); err != nil {
			return fmt.Errorf("stopping the watch of %s: %w", from, err)
		}
	}
	if to.Empty() {
		return nil
	}
	informer, err := k.cache.GetInformer(ctx, ofKind(to), cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching %s: %w", to, err)
	}
	if kind.listed, err = informer.AddEventHandler(k.events()); err != nil {
		return fmt.Errorf("watching %s: %w", to, err)
	}
	ctrl.LoggerFrom(ctx).Info("Watching a kind that Clusters refer to", "kind", to.String())
	kind.watched, kind.since = to, now
	return nil
}

func ofKind(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	return object
}

// events returns a handler that enqueues the Clusters that refer to an object.
func (k *kinds) events() toolscache.ResourceEventHandler {
	enqueue := func(handle func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request])) {
		k.mu.Lock()
		ctx, queue := k.ctx, k.queue
		k.mu.Unlock()
		if queue != nil {
			handle(ctx, queue)
		}
	}
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(news any, isInInitialList bool) {
			object, ok := news.(client.Object)
			if e := (event.CreateEvent{Object: object, IsInInitialList: isInInitialList}); ok && k.news.Create(e) {
				enqueue(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					k.handler.Create(ctx, e, queue)
				})
			}
		},
		UpdateFunc: func(before, after any) {
			old, ok := before.(client.Object)
			object, isToo := after.(client.Object)
			if e := (event.UpdateEvent{ObjectOld: old, ObjectNew: object}); ok && isToo && k.news.Update(e) {
				enqueue(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					k.handler.Update(ctx, e, queue)
				})
			}
		},
		DeleteFunc: func(last any) {
			gone, unknown := last.(toolscache.DeletedFinalStateUnknown)
			if unknown {
				last = gone.Obj
			}
			object, ok := last.(client.Object)
			if e := (event.DeleteEvent{Object: object, DeleteStateUnknown: unknown}); ok && k.news.Delete(e) {
				enqueue(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					k.handler.Delete(ctx, e, queue)
				})
			}
		},
	}
}

// CRD returns an empty CRD for reading metadata only.
func CRD() *metav1.PartialObjectMetadata {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return crd
}

// establishing is how long after the creation of a CRD its kind may not be served yet.
const establishing = time.Minute

// ContractNews passes events that can change whether and in which version a kind is read: a CRD is created, is
// deleted or changes its labels, or a new one changes in any way. It drops the CRDs found at startup, because
// nothing was read before.
var ContractNews = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
			e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
			time.Since(e.ObjectNew.GetCreationTimestamp().Time) < establishing && e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion()
	},
}

// Indexes of CAPI Clusters by the objects to which they refer: control plane and infrastructure.
const (
	ByReference = "muster.reference"     // ReferenceKey
	ByKind      = "muster.referenceKind" // name of the CRD
)

// References returns the values of ByReference.
func References(cluster client.Object) []string {
	return ofReferences(cluster, func(ref clusterv1.ContractVersionedObjectReference) string {
		return ReferenceKey(ref.APIGroup, ref.Kind, ref.Name)
	})
}

// Kinds returns the values of ByKind.
func Kinds(cluster client.Object) []string {
	return ofReferences(cluster, func(ref clusterv1.ContractVersionedObjectReference) string {
		return contract.CalculateCRDName(ref.APIGroup, ref.Kind)
	})
}

func ofReferences(object client.Object, key func(clusterv1.ContractVersionedObjectReference) string) []string {
	var keys []string
	for _, ref := range referencesOf(object.(*clusterv1.Cluster)) {
		keys = append(keys, key(ref))
	}
	return keys
}

// referencesOf returns the references of a Cluster.
func referencesOf(cluster *clusterv1.Cluster) []clusterv1.ContractVersionedObjectReference {
	return slices.DeleteFunc([]clusterv1.ContractVersionedObjectReference{cluster.Spec.ControlPlaneRef, cluster.Spec.InfrastructureRef},
		func(ref clusterv1.ContractVersionedObjectReference) bool { return !ref.IsDefined() })
}

// ReferenceKey identifies a referenced object within a namespace.
func ReferenceKey(group, kind, name string) string { return kind + "." + group + "/" + name }
