// Package policies reads Fleet's Policies. They have a cache of their own, which watches them from the first read on at
// which the API server serves the kind: Fleet before 0.16 does not have it.
package policies

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
)

// ErrListing says that the Policies are being listed.
var ErrListing = errors.New("the Policies of Fleet are being listed")

// Reader reads Policies.
type Reader struct {
	// CRDs reads the metadata of CRDs from a cache.
	CRDs client.Reader
	// NewCache returns a cache for nothing else.
	NewCache kinds.NewCache
	// News returns the requests for a Policy that was changed.
	News handler.MapFunc
	Now  func() time.Time

	mu sync.Mutex
	// stop ends the watch; nil while there is none.
	stop context.CancelFunc
	// since is when the watch began. reported is closed when its list has ended or is denied.
	since    time.Time
	reported chan struct{}
	listed   kinds.Listed
	// enqueue adds the requests for a Policy to the queue of the controller; nil until that starts.
	enqueue func(client.Object)
}

// CacheOptions returns the options of the cache, which keeps only what decides about Bundles.
func CacheOptions() cache.Options { return cache.Options{DefaultTransform: Trim} }

// Trim is the transform of the cache.
func Trim(cached any) (any, error) {
	policy, ok := cached.(*fleetv1.Policy)
	if !ok {
		return cached, nil
	}
	return &fleetv1.Policy{
		TypeMeta:              policy.TypeMeta,
		ObjectMeta:            metav1.ObjectMeta{Namespace: policy.Namespace, Name: policy.Name, UID: policy.UID, ResourceVersion: policy.ResourceVersion},
		RequireServiceAccount: policy.RequireServiceAccount, AllowedServiceAccounts: kube.AtMost(fleetpolicy.MostAllowed+1, policy.AllowedServiceAccounts),
	}, nil
}

// Limit returns the inputs of a HelmChartProxy for the Clusters of a namespace. If Fleet's Policies there refuse its
// Bundles, they are Incomplete, so that everything that is deployed stays. The error is ErrListing at first.
func (r *Reader) Limit(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, namespace string) (*inputs.Inputs, error) {
	refusal, err := r.Refusal(ctx, of.Spec.ServiceAccount, namespace)
	if err != nil || refusal == nil {
		return in, err
	}
	limited := *in
	limited.Incomplete, limited.Trouble = true, plan.PolicyRefuses(namespace, refusal)
	return &limited, nil
}

// Refusal returns why Fleet's Policies refuse Bundles with a ServiceAccount in a namespace; nil if they do not. The error is
// ErrListing at first.
func (r *Reader) Refusal(ctx context.Context, serviceAccount, namespace string) (*fleetpolicy.Refusal, error) {
	policies, err := r.policies(ctx)
	if err != nil || policies == nil {
		return nil, err
	}
	var all fleetv1.PolicyList
	if err := policies.List(ctx, &all, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Policies: %w", err)
	}
	bundle := &fleetv1.BundleSpec{}
	bundle.ServiceAccount = serviceAccount
	return fleetpolicy.Of(all.Items, bundle), nil
}

// policies returns a reader of the Policies; nil if there are none, or if only Fleet can know them.
func (r *Reader) policies(ctx context.Context) (client.Reader, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.watch(ctx); err != nil {
		return nil, err
	}
	switch {
	case r.listed.Objects != nil:
		return r.listed.Objects, nil
	case r.listed.Err != nil && !apierrors.IsForbidden(r.listed.Err) && !kube.IsUnserved(r.listed.Err):
		return nil, fmt.Errorf("watching Policies: %w", r.listed.Err)
	case r.stop != nil && !apierrors.IsForbidden(r.listed.Err) && r.Now().Sub(r.since) <= kinds.Patience: // A new CRD is served soon.
		return nil, ErrListing
	default: // Fleet refuses what it has to; a late list has events.
		return nil, nil
	}
}

// watch begins to watch Policies when their CRD appears, and stops when it goes; an event shows either. The caller
// holds the lock.
func (r *Reader) watch(ctx context.Context) error {
	crd := references.CRD()
	err := r.CRDs.Get(ctx, client.ObjectKey{Name: fleetpolicy.CRD}, crd, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading CustomResourceDefinition %q: %w", fleetpolicy.CRD, err)
	}
	switch isGone := err != nil || !crd.DeletionTimestamp.IsZero(); {
	case isGone && r.stop != nil:
		r.stop()
		r.stop, r.listed = nil, kinds.Listed{}
	case !isGone && r.stop == nil:
		ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
		reported := make(chan struct{})
		r.since, r.reported = r.Now(), reported
		end := sync.OnceFunc(func() { close(reported) })
		go kinds.Watch(ctx, r.NewCache, kinds.Of(&fleetv1.Policy{}, nil), func(listed kinds.Listed) {
			r.note(ctx, listed)
			end()
		})
	}
	return nil
}

// note notes whether Policies are listed.
func (r *Reader) note(ctx context.Context, listed kinds.Listed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	r.listed = listed
	if listed.Err != nil {
		ctrl.LoggerFrom(ctx).Info("Policies of Fleet cannot be listed yet", "reason", listed.Err.Error())
	} else if _, err := listed.Informer.AddEventHandler(r.events()); err != nil { // The informer has been stopped.
		ctrl.LoggerFrom(ctx).Info("Policies of Fleet are not followed", "reason", err.Error())
	}
}

// events returns a handler that enqueues the requests for a Policy. All its changes count: Trim leaves nothing else.
func (r *Reader) events() toolscache.ResourceEventHandler {
	news := func(object any) {
		if last, unknown := object.(toolscache.DeletedFinalStateUnknown); unknown {
			object = last.Obj
		}
		r.mu.Lock()
		enqueue := r.enqueue
		r.mu.Unlock()
		if policy, ok := object.(*fleetv1.Policy); ok && enqueue != nil { // A controller that starts reconciles everything.
			enqueue(policy)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{AddFunc: news, UpdateFunc: func(_, object any) { news(object) }, DeleteFunc: news}
}

// Source makes the Policies' events go into the queue of a controller, and has that wait for the first list.
func (r *Reader) Source() source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.mu.Lock()
		r.enqueue = func(policy client.Object) {
			for _, request := range r.News(ctx, policy) {
				queue.Add(request)
			}
		}
		r.mu.Unlock()
		if _, err := r.policies(ctx); !errors.Is(err, ErrListing) {
			return err
		}
		r.mu.Lock()
		reported := r.reported
		r.mu.Unlock()
		select {
		case <-reported:
		case <-time.After(kinds.Patience):
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	})
}
