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
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
)

const (
	// listPatience is how long the first list may take. Then, as without the right to it, only Fleet refuses Bundles.
	listPatience = 10 * time.Second
	// listInterval is how often it is checked for.
	listInterval = 50 * time.Millisecond
)

// ErrListing says that the Policies are being listed.
var ErrListing = errors.New("the Policies of Fleet are being listed")

// Cache is the part of a cache.Cache that the Reader needs.
type Cache interface {
	client.Reader
	GetInformer(ctx context.Context, object client.Object, options ...cache.InformerGetOption) (cache.Informer, error)
}

// Reader reads Policies.
type Reader struct {
	// CRDs reads the metadata of CRDs from a cache.
	CRDs client.Reader
	// Policies is a cache for nothing else.
	Policies Cache
	// News returns the requests for a Policy that was changed.
	News handler.MapFunc
	Now  func() time.Time

	mu      sync.Mutex
	watched interface{ HasSynced() bool }
	since   time.Time
	// enqueue adds the requests for a Policy to the queue of the controller; nil until that starts.
	enqueue func(client.Object)
}

// CacheOptions returns the options of the cache, which keeps only what decides about Bundles.
func CacheOptions(mgr manager.Manager) cache.Options {
	return cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(), DefaultTransform: Trim, ReaderFailOnMissingInformer: true,
	}
}

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
	if isKnown, err := r.watch(ctx); err != nil || !isKnown {
		return nil, err
	}
	var all fleetv1.PolicyList
	if err := r.Policies.List(ctx, &all, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Policies: %w", err)
	}
	bundle := &fleetv1.BundleSpec{}
	bundle.ServiceAccount = serviceAccount
	return fleetpolicy.Of(all.Items, bundle), nil
}

// watch watches Policies if the API server serves them, and reports whether they are known.
func (r *Reader) watch(ctx context.Context) (isKnown bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	crd := references.CRD()
	err = r.CRDs.Get(ctx, client.ObjectKey{Name: fleetpolicy.CRD}, crd, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) || err == nil && !crd.DeletionTimestamp.IsZero() {
		r.since = time.Time{}
		return false, nil // Its event follows.
	}
	if err != nil {
		return false, fmt.Errorf("reading CustomResourceDefinition %q: %w", fleetpolicy.CRD, err)
	}
	if r.since.IsZero() {
		r.since = r.Now()
	}
	if r.watched == nil {
		var informer cache.Informer
		if informer, err = r.Policies.GetInformer(ctx, &fleetv1.Policy{}, cache.BlockUntilSynced(false)); err == nil {
			r.watched, err = informer.AddEventHandler(r.events())
		}
	}
	switch {
	case err == nil && r.watched.HasSynced():
		return true, nil
	case r.Now().Sub(r.since) <= listPatience && (err == nil || kube.IsUnserved(err)): // A new CRD is served soon.
		return false, ErrListing
	case err != nil && !kube.IsUnserved(err):
		return false, fmt.Errorf("watching Policies: %w", err)
	default: // Fleet refuses what it has to; a late list has events.
		return false, nil
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
		return wait.PollUntilContextCancel(ctx, listInterval, true, func(ctx context.Context) (bool, error) {
			_, err := r.watch(ctx)
			return !errors.Is(err, ErrListing), nil
		})
	})
}
