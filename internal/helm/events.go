package helm

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
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

// later returns a handler that enqueues the requests for an object after a pause. It merges the requests for the
// same object within the pause.
func later(pause time.Duration, of handler.MapFunc) handler.EventHandler {
	enqueue := func(ctx context.Context, queue requests, objects ...client.Object) {
		all := map[reconcile.Request]bool{} // A Bundle has many releases of one HelmChartProxy.
		for _, object := range objects {
			for _, request := range of(ctx, object) {
				all[request] = true
			}
		}
		for request := range all {
			queue.AddAfter(request, pause)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue requests) { enqueue(ctx, queue, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue requests) {
			enqueue(ctx, queue, e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue requests) { enqueue(ctx, queue, e.Object) },
	}
}

// one returns a request for a name, unless no object can have it: users may write anything into annotations.
func one(namespace, name string) []reconcile.Request {
	if name == "" || len(name) > validation.DNS1123SubdomainMaxLength || len(namespace) > validation.DNS1123LabelMaxLength {
		return nil
	}
	return []reconcile.Request{{NamespacedName: plan.Key{Namespace: namespace, Name: name}}}
}

func itself(_ context.Context, object client.Object) []reconcile.Request {
	return one(object.GetNamespace(), object.GetName())
}

// ownerOf returns the HelmChartProxy of a HelmReleaseProxy.
func ownerOf(_ context.Context, release client.Object) []reconcile.Request {
	if owner := plan.OwnerOf(release); owner != nil {
		return one(release.GetNamespace(), owner.Name)
	}
	return nil
}

// ofValues returns the HelmReleaseProxy in the annotation of an object with values.
func ofValues(_ context.Context, object client.Object) []reconcile.Request {
	namespace, name, _ := strings.Cut(object.GetAnnotations()[plan.ReleaseAnnotation], "/")
	return one(namespace, name)
}

// bundleOf returns the Bundle of a HelmReleaseProxy.
func bundleOf(_ context.Context, release client.Object) []reconcile.Request {
	its := proxy.BundleKey(release.(*addonsv1.HelmReleaseProxy))
	return one(its.Namespace, its.Name)
}

// enqueuer finds the objects that an event concerns, in the cache.
type enqueuer struct{ client.Reader }

// list lists objects from the cache; callers must not change them.
func (e *enqueuer) list(ctx context.Context, into client.ObjectList, options ...client.ListOption) {
	if err := e.List(ctx, into, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing from the cache failed")
	}
}

// selecting returns the HelmChartProxies that select a Cluster, and may have it in a stage of their rollouts.
func (e *enqueuer) selecting(ctx context.Context, object client.Object) (result []reconcile.Request) {
	cluster := object.(*clusterv1.Cluster)
	var all addonsv1.HelmChartProxyList
	e.list(ctx, &all)
	for i := range all.Items {
		of := &all.Items[i]
		if of.Namespace != cluster.Namespace && of.Spec.NamespaceSelector == nil {
			continue
		}
		if selector, trouble := plan.NewSelector(of); trouble == nil && selector.Matches(cluster, proxy.NamespaceLabels(ctx, e.Reader)) {
			result = append(result, itself(ctx, of)...)
		}
	}
	return result
}

// proxies returns all HelmChartProxies.
func (e *enqueuer) proxies(ctx context.Context, _ client.Object) (result []reconcile.Request) {
	var all addonsv1.HelmChartProxyList
	e.list(ctx, &all)
	for i := range all.Items {
		result = append(result, itself(ctx, &all.Items[i])...)
	}
	return result
}

// releases returns the requests for some HelmReleaseProxies.
func (e *enqueuer) releases(ctx context.Context, requests handler.MapFunc, which ...client.ListOption) (result []reconcile.Request) {
	var all addonsv1.HelmReleaseProxyList
	e.list(ctx, &all, which...)
	for i := range all.Items {
		result = append(result, requests(ctx, &all.Items[i])...)
	}
	return result
}

// of returns the requests for the HelmReleaseProxies of a HelmChartProxy, or for all if the object is of another kind.
func (e *enqueuer) of(requests handler.MapFunc) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		if _, isProxy := object.(*addonsv1.HelmChartProxy); isProxy {
			return e.releases(ctx, requests, client.InNamespace(object.GetNamespace()), client.MatchingFields{proxy.ByProxy: object.GetName()})
		}
		return e.releases(ctx, requests)
	}
}

// by returns the requests for the HelmReleaseProxies that an index has for an object.
func (e *enqueuer) by(index string, requests handler.MapFunc) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		return e.releases(ctx, requests, client.MatchingFields{index: client.ObjectKeyFromObject(object).String()})
	}
}

// ofFleetCluster returns the HelmReleaseProxies of a Fleet Cluster, and of its Cluster.
func (e *enqueuer) ofFleetCluster(ctx context.Context, fleet client.Object) []reconcile.Request {
	ofCluster := e.releases(ctx, itself, client.MatchingFields{byCluster: store.ClusterOf(fleet).String()})
	return append(e.by(release.ByTarget, itself)(ctx, fleet), ofCluster...)
}

// bundlesOfFleetCluster returns the Bundles with a Fleet Cluster as a target.
func (e *enqueuer) bundlesOfFleetCluster(ctx context.Context, fleet client.Object) []reconcile.Request {
	isTarget := func(its fleetv1.BundleTarget) bool { return its.ClusterName == fleet.GetName() }
	have := e.bundles(ctx, func(its *fleetv1.Bundle) bool { return slices.ContainsFunc(its.Spec.Targets, isTarget) }, client.InNamespace(fleet.GetNamespace()))
	return append(e.by(release.ByTarget, bundleOf)(ctx, fleet), have...)
}

// bundlesOfProxy returns the Bundles of a HelmChartProxy.
func (e *enqueuer) bundlesOfProxy(ctx context.Context, of client.Object) []reconcile.Request {
	have := e.bundles(ctx, func(*fleetv1.Bundle) bool { return true }, client.MatchingLabels(plan.Labels(client.ObjectKeyFromObject(of))))
	return append(e.of(bundleOf)(ctx, of), have...)
}

// bundles returns some of the Bundles that exist: a retained target has no HelmReleaseProxy, which would name its Bundle.
func (e *enqueuer) bundles(ctx context.Context, is func(*fleetv1.Bundle) bool, which client.ListOption) (result []reconcile.Request) {
	var all fleetv1.BundleList
	e.list(ctx, &all, which)
	for i := range all.Items {
		if is(&all.Items[i]) {
			result = append(result, itself(ctx, &all.Items[i])...)
		}
	}
	return result
}

// ofDeployment returns the HelmReleaseProxy of a BundleDeployment. Fleet sets the labels; forged ones only make
// one release reconcile.
func (e *enqueuer) ofDeployment(ctx context.Context, deployment client.Object) []reconcile.Request {
	labels := deployment.GetLabels()
	bundle := plan.Key{Namespace: labels[fleetv1.ClusterNamespaceLabel], Name: labels[fleetv1.BundleLabel]}
	return e.releases(ctx, itself, client.MatchingFields{release.ByTarget: release.Target(bundle, labels[fleetv1.ClusterLabel])})
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
		return e.releases(ctx, itself)
	}
	return e.ofClusters(ctx, client.MatchingFields{references.ByKind: crd.GetName()})
}

func (e *enqueuer) ofClusters(ctx context.Context, which ...client.ListOption) (result []reconcile.Request) {
	var clusters clusterv1.ClusterList
	e.list(ctx, &clusters, which...)
	for i := range clusters.Items {
		result = append(result, e.by(byCluster, itself)(ctx, &clusters.Items[i])...)
	}
	return result
}

// onUpdate returns a predicate that filters updates, and passes everything else.
func onUpdate(passes func(before, after client.Object) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return passes(e.ObjectOld, e.ObjectNew) }}
}

var (
	finalizersChanged = onUpdate(func(before, after client.Object) bool {
		return !slices.Equal(before.GetFinalizers(), after.GetFinalizers()) || before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero()
	})
	// reshaped drops updates of annotations and of the status; changed drops updates of the status.
	reshaped = predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, finalizersChanged)
	changed  = predicate.Or[client.Object](reshaped, predicate.AnnotationChangedPredicate{})
	// reimported passes news of the import of a Cluster.
	reimported = predicate.Or[client.Object](predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}, onUpdate(func(before, after client.Object) bool {
		return !reflect.DeepEqual(before.GetOwnerReferences(), after.GetOwnerReferences())
	}))
	// observedByFleet passes updates that show whether Fleet has processed a Bundle.
	observedByFleet = onUpdate(func(before, after client.Object) bool {
		was, is := before.(*fleetv1.Bundle), after.(*fleetv1.Bundle)
		return was.Generation != is.Generation || was.Status.ObservedGeneration != is.Status.ObservedGeneration || (len(was.Spec.Targets) == 0) != (len(is.Spec.Targets) == 0)
	})
	comesOrGoes = onUpdate(func(client.Object, client.Object) bool { return false })
)
