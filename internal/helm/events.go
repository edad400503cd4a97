package helm

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/bundle"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/release"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube/references"
)

const (
	// releasePause and bundlePause delay reconciles, to collect more changes of releases: a reconcile of a
	// HelmChartProxy reads all its releases, and a Bundle holds the targets of many.
	releasePause = 500 * time.Millisecond
	bundlePause  = 100 * time.Millisecond
)

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// later returns a handler that enqueues the requests for an object after a pause. Requests for the same object
// within the pause become one.
func later(pause time.Duration, of func(client.Object) []reconcile.Request) handler.EventHandler {
	enqueue := func(queue requests, objects ...client.Object) {
		for _, object := range objects {
			for _, request := range of(object) {
				queue.AddAfter(request, pause)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue requests) { enqueue(queue, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue requests) {
			enqueue(queue, e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, queue requests) { enqueue(queue, e.Object) },
	}
}

func requestsFor(keys ...plan.Key) []reconcile.Request {
	var result []reconcile.Request
	for _, key := range keys {
		if len(key.Name) <= validation.DNS1123SubdomainMaxLength && len(key.Namespace) <= validation.DNS1123LabelMaxLength && key.Name != "" {
			result = append(result, reconcile.Request{NamespacedName: key})
		}
	}
	return result
}

func itself(object client.Object) []reconcile.Request {
	return requestsFor(client.ObjectKeyFromObject(object))
}

// ownerOf returns the HelmChartProxy of a HelmReleaseProxy.
func ownerOf(release client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOf(release); owner != nil && proxy.IsProxy(*owner) {
		return requestsFor(plan.Key{Namespace: release.GetNamespace(), Name: owner.Name})
	}
	return nil
}

// ofValues returns the HelmReleaseProxy in the annotation of an object with values.
func ofValues(_ context.Context, object client.Object) []reconcile.Request {
	namespace, name, _ := strings.Cut(object.GetAnnotations()[plan.ReleaseAnnotation], "/")
	return requestsFor(plan.Key{Namespace: namespace, Name: name})
}

// bundleOf returns the Bundle of a HelmReleaseProxy.
func bundleOf(release client.Object) []reconcile.Request {
	return requestsFor(proxy.BundleKey(release.(*addonsv1.HelmReleaseProxy)))
}

// enqueuer finds the objects that an event concerns, in the cache.
type enqueuer struct{ client.Reader }

// list lists objects from the cache; callers must not change them.
func (e *enqueuer) list(ctx context.Context, into client.ObjectList, options ...client.ListOption) {
	if err := e.List(ctx, into, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing from the cache failed")
	}
}

// membership enqueues the HelmChartProxies that begin or cease to select a Cluster.
func (e *enqueuer) membership() handler.EventHandler {
	enqueue := func(ctx context.Context, queue requests, before, after *clusterv1.Cluster) {
		its := before
		switch {
		case its == nil:
			its = after
		case after != nil && maps.Equal(before.Labels, after.Labels) && before.GetClassKey() == after.GetClassKey():
			return
		}
		var all addonsv1.HelmChartProxyList
		e.list(ctx, &all)
		namespaceLabels := proxy.NamespaceLabels(ctx, e.Reader)
		for i := range all.Items {
			of := &all.Items[i]
			if of.Namespace != its.Namespace && of.Spec.NamespaceSelector == nil {
				continue
			}
			selector, trouble := plan.NewSelector(of)
			if trouble != nil {
				continue
			}
			was := before != nil && selector.Matches(before, namespaceLabels)
			is := after != nil && selector.Matches(after, namespaceLabels)
			if was != is {
				queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(of)})
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue requests) {
			enqueue(ctx, queue, nil, e.Object.(*clusterv1.Cluster))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue requests) {
			enqueue(ctx, queue, e.ObjectOld.(*clusterv1.Cluster), e.ObjectNew.(*clusterv1.Cluster))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue requests) {
			enqueue(ctx, queue, e.Object.(*clusterv1.Cluster), nil)
		},
	}
}

// proxies returns all HelmChartProxies.
func (e *enqueuer) proxies(ctx context.Context, _ client.Object) []reconcile.Request {
	var all addonsv1.HelmChartProxyList
	e.list(ctx, &all)
	var result []reconcile.Request
	for i := range all.Items {
		result = append(result, itself(&all.Items[i])...)
	}
	return result
}

// releases returns the HelmReleaseProxies of a HelmChartProxy, or all.
func (e *enqueuer) releases(ctx context.Context, of client.Object) []reconcile.Request {
	return e.ofReleases(ctx, of, itself)
}

// bundles returns the Bundles of a HelmChartProxy.
func (e *enqueuer) bundles(ctx context.Context, of client.Object) []reconcile.Request {
	return e.ofReleases(ctx, of, bundleOf)
}

func (e *enqueuer) ofReleases(ctx context.Context, of client.Object, result func(client.Object) []reconcile.Request) []reconcile.Request {
	var options []client.ListOption
	if _, isProxy := of.(*addonsv1.HelmChartProxy); isProxy {
		options = append(options, client.InNamespace(of.GetNamespace()), client.MatchingFields{proxy.ByProxy: of.GetName()})
	}
	return e.matching(ctx, result, options...)
}

func (e *enqueuer) matching(ctx context.Context, result func(client.Object) []reconcile.Request, options ...client.ListOption) []reconcile.Request {
	var all addonsv1.HelmReleaseProxyList
	e.list(ctx, &all, options...)
	var requests []reconcile.Request
	for i := range all.Items {
		requests = append(requests, result(&all.Items[i])...)
	}
	return requests
}

// ofCluster returns the HelmReleaseProxies of a Cluster.
func (e *enqueuer) ofCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return e.matching(ctx, itself, client.MatchingFields{byCluster: client.ObjectKeyFromObject(cluster).String()})
}

// ofFleetCluster returns the HelmReleaseProxies of a Fleet Cluster, and of the Clusters that own it.
func (e *enqueuer) ofFleetCluster(ctx context.Context, fleet client.Object) []reconcile.Request {
	result := e.matching(ctx, itself, client.MatchingFields{release.ByTarget: client.ObjectKeyFromObject(fleet).String()})
	for _, cluster := range store.ClustersOf(fleet) {
		result = append(result, e.matching(ctx, itself, client.MatchingFields{byCluster: fleet.GetNamespace() + "/" + cluster})...)
	}
	return result
}

// bundlesOfFleetCluster returns the Bundles with a Fleet Cluster as a target.
func (e *enqueuer) bundlesOfFleetCluster(ctx context.Context, fleet client.Object) []reconcile.Request {
	result := e.matching(ctx, bundleOf, client.MatchingFields{release.ByTarget: client.ObjectKeyFromObject(fleet).String()})
	var all fleetv1.BundleList // A retained target has no HelmReleaseProxy.
	e.list(ctx, &all, client.InNamespace(fleet.GetNamespace()))
	for i := range all.Items {
		for j := range all.Items[i].Spec.Targets {
			if all.Items[i].Spec.Targets[j].ClusterName == fleet.GetName() {
				result = append(result, itself(&all.Items[i])...)
			}
		}
	}
	return result
}

// proxiesOf returns the HelmChartProxies with a release in a Bundle. It ignores the
// Bundle's own annotation, which a tenant could forge.
func (e *enqueuer) proxiesOf(bundleOfThem client.Object) []reconcile.Request {
	all := e.matching(context.Background(), ownerOf, client.MatchingFields{bundle.ByBundle: client.ObjectKeyFromObject(bundleOfThem).String()})
	slices.SortFunc(all, func(a, b reconcile.Request) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// ofDeployment returns the HelmReleaseProxy of a BundleDeployment. Fleet sets the labels; forged ones only make
// one release reconcile.
func (e *enqueuer) ofDeployment(ctx context.Context, deployment client.Object) []reconcile.Request {
	labels := deployment.GetLabels()
	bundle := plan.Key{Namespace: labels[fleetv1.ClusterNamespaceLabel], Name: labels[fleetv1.BundleLabel]}
	return e.matching(ctx, itself, client.MatchingFields{release.ByTarget: release.Target(bundle, labels[fleetv1.ClusterLabel])})
}

// ofBundle returns the HelmReleaseProxies of a Bundle.
func (e *enqueuer) ofBundle(ctx context.Context, its client.Object) []reconcile.Request {
	return e.matching(ctx, itself, client.MatchingFields{bundle.ByBundle: client.ObjectKeyFromObject(its).String()})
}

// ofReferred returns the HelmReleaseProxies of the Clusters that refer to an object.
func (e *enqueuer) ofReferred(ctx context.Context, object client.Object) []reconcile.Request {
	kind := object.GetObjectKind().GroupVersionKind()
	return e.ofClusters(ctx, client.InNamespace(object.GetNamespace()),
		client.MatchingFields{references.ByReference: references.ReferenceKey(kind.Group, kind.Kind, object.GetName())})
}

// ofKind returns the HelmReleaseProxies of the Clusters that refer to a kind, or all for the CRD of
// HelmChartProxies.
func (e *enqueuer) ofKind(ctx context.Context, crd client.Object) []reconcile.Request {
	if isProxyCRD(crd) {
		return e.matching(ctx, itself)
	}
	return e.ofClusters(ctx, client.MatchingFields{references.ByKind: crd.GetName()})
}

func (e *enqueuer) ofClusters(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	var clusters clusterv1.ClusterList
	e.list(ctx, &clusters, options...)
	var result []reconcile.Request
	for i := range clusters.Items {
		result = append(result, e.ofCluster(ctx, &clusters.Items[i])...)
	}
	return result
}

// updates passes only updates for which a function returns true.
func updates(holds func(before, after client.Object) bool) predicate.Funcs {
	never := predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	never.UpdateFunc = func(e event.UpdateEvent) bool { return holds(e.ObjectOld, e.ObjectNew) }
	return never
}

var (
	finalizersChanged = updates(func(before, after client.Object) bool {
		return !reflect.DeepEqual(before.GetFinalizers(), after.GetFinalizers()) || before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero()
	})
	ownersChanged = updates(func(before, after client.Object) bool {
		return !reflect.DeepEqual(before.GetOwnerReferences(), after.GetOwnerReferences())
	})
	// statusChanged passes the updates that changed drops.
	statusChanged = updates(func(before, after client.Object) bool {
		return !changed.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	})
	// rest passes the updates that reshaped drops: a release's record and status.
	rest = updates(func(before, after client.Object) bool {
		return !reshaped.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	})
	// observedByFleet passes updates that show whether Fleet has processed a Bundle.
	observedByFleet = updates(func(before, after client.Object) bool {
		was, is := before.(*fleetv1.Bundle), after.(*fleetv1.Bundle)
		return was.Generation != is.Generation || was.Status.ObservedGeneration != is.Status.ObservedGeneration || (len(was.Spec.Targets) == 0) != (len(is.Spec.Targets) == 0)
	})
	comesOrGoes = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
	deleted     = predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
)
