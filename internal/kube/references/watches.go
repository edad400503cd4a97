package references

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/contract"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/settings"
)

// watch is the watch of a kind. Its fields are guarded by the Reader's lock.
type watch struct {
	crd     types.UID
	version string
	since   time.Time
	stop    context.CancelFunc
	// kind is the one that the API server serves, whatever a reference spells; empty before the first list.
	kind string
	// Listed has errListing at first.
	kinds.Listed
}

var errListing = errors.New("it is being listed; if that lasts, the log of the API server, or of the kind's conversion webhook, says why")

// problem returns why an object of a kind cannot be read; nil if it can.
func (w *watch) problem(kind schema.GroupVersionKind, now time.Time) error {
	switch resource := resourceOf(kind.GroupKind()); {
	case apierrors.IsForbidden(w.Err):
		return fmt.Errorf("the syncer may not read %s; give it a ClusterRole with get, list and watch on them, labelled %s: \"true\"", resource, settings.AggregationLabel)
	case w.Err != nil:
		return &ListingError{fmt.Errorf("%s cannot be read yet: %w", kind, w.Err), kinds.Patience - now.Sub(w.since)}
	case w.kind != kind.Kind: // There are many spellings, and all lead to the same CRD.
		return fmt.Errorf("%w under this name: %s is of kind %q, not %q; correct the reference", errUndeclared, resource, w.kind, kind.Kind)
	}
	return nil
}

// watched returns the watch of a kind in this version. It ends that of another version, or of an earlier CRD of this
// name. The caller holds the lock.
func (r *Reader) watched(crd *metav1.PartialObjectMetadata, kind schema.GroupVersionKind) *watch {
	if its := r.watches[crd.Name]; its != nil && its.crd == crd.UID && its.version == kind.Version {
		return its
	}
	r.drop(crd.Name)
	ctx, stop := context.WithCancel(r.ctx)
	its := &watch{crd: crd.UID, version: kind.Version, since: r.now(), stop: stop, Listed: kinds.Listed{Err: errListing}}
	r.watches[crd.Name] = its
	var served schema.GroupVersionKind
	go kinds.Watch(ctx, r.newCache, kinds.Kind{Object: func() (_ client.Object, err error) {
		object := &unstructured.Unstructured{}
		served, err = r.mapper.KindFor(resourceOf(kind.GroupKind()).WithVersion(kind.Version))
		object.SetGroupVersionKind(served)
		return object, err
	}}, func(listed kinds.Listed) { r.changed(ctx, crd.Name, its, served.Kind, listed) })
	return its
}

// drop ends the watch of a kind. The caller holds the lock.
func (r *Reader) drop(crd string) {
	if its := r.watches[crd]; its != nil {
		its.stop()
		delete(r.watches, crd)
	}
}

// changed notes the new state of a watch, and enqueues the Clusters that refer to the kind.
func (r *Reader) changed(ctx context.Context, crd string, its *watch, kind string, listed kinds.Listed) {
	log := ctrl.LoggerFrom(ctx).WithValues("kind", crd, "version", its.version)
	queue := func() workqueue.TypedRateLimitingInterface[reconcile.Request] {
		r.mu.Lock()
		defer r.mu.Unlock()
		its.kind, its.Listed = kind, listed
		if listed.Err == nil {
			r.follow(ctx, its)
		}
		return r.queue
	}()
	if listed.Err == nil {
		log.Info("Watching a kind that Clusters refer to")
	} else {
		log.Info("A kind that Clusters refer to cannot be read yet", "reason", listed.Err.Error())
	}
	if queue != nil {
		object := CRD()
		object.SetName(crd)
		r.ofKind.Create(ctx, event.CreateEvent{Object: object}, queue)
	}
}

// follow makes changes of the listed objects enqueue Clusters. The caller holds the lock.
func (r *Reader) follow(ctx context.Context, its *watch) {
	if r.queue == nil {
		return
	}
	objects := source.Informer{Informer: its.Informer, Handler: r.ofObject, Predicates: []predicate.Predicate{afterList, kube.CompactedChanged, notPaused}}
	if err := objects.Start(ctx, r.queue); err != nil { // The informer has been stopped.
		ctrl.LoggerFrom(ctx).Info("The objects of a kind are not followed", "reason", err.Error())
	}
}

// Source makes the events of referenced objects go into the queue of the controller that reconciles Clusters.
func (r *Reader) Source() source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queue = queue
		for _, its := range r.watches {
			if its.Err == nil {
				r.follow(ctx, its)
			}
		}
		return nil
	})
}

// CRDs returns the handler of the events of CRDs that ContractNews passes. It ends the watch of a kind whose CRD is
// gone, even if no Cluster refers to it any more.
func (r *Reader) CRDs() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: r.ofKind.Create,
		UpdateFunc: r.ofKind.Update,
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			r.mu.Lock()
			r.drop(e.Object.GetName())
			r.mu.Unlock()
			r.ofKind.Delete(ctx, e, queue)
		},
	}
}

var (
	// afterList drops the objects of the first list: its end enqueues all their Clusters.
	afterList = predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}
	// notPaused drops updates of paused objects; it passes the end of a pause, creation and deletion.
	notPaused = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !annotations.HasPaused(e.ObjectNew) }}
)

// resourceOf returns the resource of a kind. Its String method gives the name of the kind's CRD.
func resourceOf(kind schema.GroupKind) schema.GroupResource {
	return schema.ParseGroupResource(contract.CalculateCRDName(kind.Group, kind.Kind))
}
