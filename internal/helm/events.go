package helm

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/release"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
)

const (
	// releasePause and bundlePause delay reconciles, to collect more changes of releases: a reconcile of a
	// HelmChartProxy reads all its releases, and a Bundle holds the targets of many. No event says that a change was the
	// last of many.
	releasePause = 500 * time.Millisecond
	bundlePause  = 100 * time.Millisecond
)

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// later returns handlers that together enqueue a request at most once within a pause: the first one at once, and those that
// follow it as one at the end of the pause.
func later(pause time.Duration) func(handler.MapFunc) handler.EventHandler {
	recent := cache.NewExpiring()
	return func(of handler.MapFunc) handler.EventHandler { return merged(recent, pause, of) }
}

func merged(recent *cache.Expiring, pause time.Duration, of handler.MapFunc) handler.EventHandler {
	enqueue := func(ctx context.Context, queue requests, objects ...client.Object) {
		all := map[reconcile.Request]bool{} // A Bundle has many releases of one HelmChartProxy.
		for _, object := range objects {
			for _, request := range of(ctx, object) {
				all[request] = true
			}
		}
		for request := range all {
			now := time.Now()
			at := now
			if last, isRecent := recent.Get(request); isRecent {
				if at = last.(time.Time); !at.After(now) {
					at = at.Add(pause)
				}
			}
			recent.Set(request, at, at.Sub(now)+pause)
			queue.AddAfter(request, at.Sub(now))
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

// first enqueues an object before all others: otherwise, a worker would wait for it.
var first = handler.Funcs{GenericFunc: func(_ context.Context, e event.GenericEvent, queue requests) {
	kube.Enqueue(queue, priorityqueue.AddOpts{Priority: new(1)}, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
}}

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

// each returns the requests for the objects that a list has in the cache; they must not be changed.
func (e *enqueuer) each(ctx context.Context, list client.ObjectList, requests handler.MapFunc, which ...client.ListOption) (result []reconcile.Request) {
	err := e.List(ctx, list, append(which, client.UnsafeDisableDeepCopy)...)
	err = cmp.Or(err, meta.EachListItem(list, func(its runtime.Object) error {
		result = append(result, requests(ctx, its.(client.Object))...)
		return nil
	}))
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing from the cache failed")
	}
	return result
}

// selecting returns the HelmChartProxies that select a Cluster, and may have it in a stage of their rollouts.
func (e *enqueuer) selecting(ctx context.Context, object client.Object) []reconcile.Request {
	cluster := object.(*clusterv1.Cluster)
	return e.each(ctx, &addonsv1.HelmChartProxyList{}, func(ctx context.Context, object client.Object) []reconcile.Request {
		of := object.(*addonsv1.HelmChartProxy)
		if of.Namespace != cluster.Namespace && of.Spec.NamespaceSelector == nil {
			return nil
		}
		if selector, trouble := plan.NewSelector(of); trouble != nil || !selector.Matches(cluster, proxy.NamespaceLabels(ctx, e.Reader)) {
			return nil
		}
		return itself(ctx, of)
	})
}

// proxies returns all HelmChartProxies.
func (e *enqueuer) proxies(ctx context.Context, _ client.Object) []reconcile.Request {
	return e.each(ctx, &addonsv1.HelmChartProxyList{}, itself)
}

// of returns the requests for the HelmReleaseProxies of a HelmChartProxy, or for all if the object is of another kind.
func (e *enqueuer) of(requests handler.MapFunc) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		var which []client.ListOption
		if _, isProxy := object.(*addonsv1.HelmChartProxy); isProxy {
			which = []client.ListOption{client.InNamespace(object.GetNamespace()), client.MatchingFields{proxy.ByProxy: object.GetName()}}
		}
		return e.each(ctx, &addonsv1.HelmReleaseProxyList{}, requests, which...)
	}
}

// by returns the requests for the HelmReleaseProxies that an index has for an object.
func (e *enqueuer) by(index string, requests handler.MapFunc) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		return e.each(ctx, &addonsv1.HelmReleaseProxyList{}, requests, client.MatchingFields{index: client.ObjectKeyFromObject(object).String()})
	}
}

// ofFleetCluster returns the HelmReleaseProxies of a Fleet Cluster, and of its Cluster.
func (e *enqueuer) ofFleetCluster(ctx context.Context, fleet client.Object) []reconcile.Request {
	ofCluster := e.each(ctx, &addonsv1.HelmReleaseProxyList{}, itself, client.MatchingFields{proxy.ByCluster: store.ClusterOf(fleet).String()})
	return append(e.by(release.ByTarget, itself)(ctx, fleet), ofCluster...)
}

// bundlesOfFleetCluster returns the Bundles with a Fleet Cluster as a target. A retained target has no HelmReleaseProxy.
func (e *enqueuer) bundlesOfFleetCluster(ctx context.Context, fleet client.Object) []reconcile.Request {
	isTarget := func(its fleetv1.BundleTarget) bool { return its.ClusterName == fleet.GetName() }
	retained := e.each(ctx, &fleetv1.BundleList{}, func(ctx context.Context, its client.Object) []reconcile.Request {
		if !slices.ContainsFunc(its.(*fleetv1.Bundle).Spec.Targets, isTarget) {
			return nil
		}
		return itself(ctx, its)
	}, client.InNamespace(fleet.GetNamespace()))
	return append(e.by(release.ByTarget, bundleOf)(ctx, fleet), retained...)
}

// bundlesOfProxy returns the Bundles of a HelmChartProxy, with or without a HelmReleaseProxy.
func (e *enqueuer) bundlesOfProxy(ctx context.Context, of client.Object) []reconcile.Request {
	have := e.each(ctx, &fleetv1.BundleList{}, itself, client.MatchingLabels(plan.Labels(client.ObjectKeyFromObject(of))))
	return append(e.of(bundleOf)(ctx, of), have...)
}

// ofDeployment returns the HelmReleaseProxy of a BundleDeployment. Fleet sets the labels; forged ones only make
// one release reconcile.
func (e *enqueuer) ofDeployment(ctx context.Context, deployment client.Object) []reconcile.Request {
	labels := deployment.GetLabels()
	bundle := plan.Key{Namespace: labels[fleetv1.ClusterNamespaceLabel], Name: labels[fleetv1.BundleLabel]}
	return e.each(ctx, &addonsv1.HelmReleaseProxyList{}, itself, client.MatchingFields{release.ByTarget: release.Target(bundle, labels[fleetv1.ClusterLabel])})
}

// claimNews passes HelmReleaseProxies that appear, disappear, begin to go or ask for another release. At the start, each
// enqueues itself.
var claimNews = predicate.And(predicate.GenerationChangedPredicate{}, predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
})

// othersOfRelease returns the HelmReleaseProxies of other HelmChartProxies for the same release on the same Cluster. Users
// could forge one and change it again and again, so it counts only if it has a HelmChartProxy that may reach the Cluster.
func (e *enqueuer) othersOfRelease(ctx context.Context, object client.Object) []reconcile.Request {
	its := object.(*addonsv1.HelmReleaseProxy)
	if e.ifOwned(ctx, its) == nil {
		return nil
	}
	return few(e.each(ctx, &addonsv1.HelmReleaseProxyList{}, func(ctx context.Context, other client.Object) []reconcile.Request {
		release := other.(*addonsv1.HelmReleaseProxy)
		if release.UID == its.UID {
			return nil
		}
		return e.ifOwned(ctx, release)
	}, proxy.Asking(its)))
}

// ifOwned returns the request for a HelmReleaseProxy, unless it has no HelmChartProxy: others can forge thousands.
func (e *enqueuer) ifOwned(ctx context.Context, release *addonsv1.HelmReleaseProxy) []reconcile.Request {
	if of, err := proxy.OwnerOf(ctx, e, release); err != nil || of == nil {
		return nil
	}
	return itself(ctx, release)
}

// few returns the requests if they are few: each of those that wait for a release reads all who ask for it, and looks without
// an event, too, in proxy.UntilFree.
func few(waiting []reconcile.Request) []reconcile.Request {
	if len(waiting) > proxy.MostAsking {
		return nil
	}
	return waiting
}

// waiting returns the HelmReleaseProxies for a Fleet Cluster whose release another HelmChartProxy has.
func (e *enqueuer) waiting(ctx context.Context, namespace, fleetCluster string) []reconcile.Request {
	return few(e.each(ctx, &addonsv1.HelmReleaseProxyList{}, func(ctx context.Context, its client.Object) []reconcile.Request {
		if waits := its.(*addonsv1.HelmReleaseProxy); plan.IsTaken(waits) {
			return e.ifOwned(ctx, waits)
		}
		return nil
	}, client.MatchingFields{release.ByTarget: namespace + "/" + fleetCluster}))
}

func (e *enqueuer) waitingForDeployment(ctx context.Context, deployment client.Object) []reconcile.Request {
	labels := deployment.GetLabels()
	return e.waiting(ctx, labels[fleetv1.ClusterNamespaceLabel], labels[fleetv1.ClusterLabel])
}

// waitingForTargets enqueues those that wait for a target that has gone: its HelmReleaseProxy may be lost, and Fleet may have
// made no BundleDeployment for it yet.
func (e *enqueuer) waitingForTargets() handler.EventHandler {
	enqueue := func(ctx context.Context, before client.Object, left []fleetv1.BundleTarget, queue requests) {
		isLeft := map[string]bool{}
		for _, its := range left {
			isLeft[its.ClusterName] = true
		}
		for _, its := range before.(*fleetv1.Bundle).Spec.Targets {
			if !isLeft[its.ClusterName] {
				isLeft[its.ClusterName] = true // Others can name one a hundred times.
				for _, request := range e.waiting(ctx, before.GetNamespace(), its.ClusterName) {
					queue.Add(request)
				}
			}
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue requests) {
			enqueue(ctx, e.ObjectOld, e.ObjectNew.(*fleetv1.Bundle).Spec.Targets, queue)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue requests) { enqueue(ctx, e.Object, nil, queue) },
	}
}

// ofReferred returns the HelmReleaseProxies of the Clusters that refer to an object.
func (e *enqueuer) ofReferred(ctx context.Context, object client.Object) []reconcile.Request {
	kind := object.GetObjectKind().GroupVersionKind()
	return e.each(ctx, &clusterv1.ClusterList{}, e.by(proxy.ByCluster, itself), client.InNamespace(object.GetNamespace()),
		client.MatchingFields{references.ByReference: references.ReferenceKey(kind.Group, kind.Kind, object.GetName())})
}

// ofPolicy returns the HelmReleaseProxies of the Clusters in the namespace of a Policy.
func (e *enqueuer) ofPolicy(ctx context.Context, policy client.Object) []reconcile.Request {
	return e.each(ctx, &clusterv1.ClusterList{}, e.by(proxy.ByCluster, itself), client.InNamespace(policy.GetNamespace()))
}

// ofKind returns the HelmReleaseProxies of the Clusters that refer to a kind, or all for the CRD of
// HelmChartProxies.
func (e *enqueuer) ofKind(ctx context.Context, crd client.Object) []reconcile.Request {
	if isProxyCRD(crd) {
		return e.of(itself)(ctx, crd)
	}
	return e.each(ctx, &clusterv1.ClusterList{}, e.by(proxy.ByCluster, itself), client.MatchingFields{references.ByKind: crd.GetName()})
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
	// beginsToFail passes updates that show that values cannot be rendered any more.
	beginsToFail = onUpdate(func(before, after client.Object) bool {
		return plan.CannotRender(after.(*addonsv1.HelmReleaseProxy)) && !plan.CannotRender(before.(*addonsv1.HelmReleaseProxy))
	})
	// endsToWait passes updates that show that the release is no other HelmChartProxy's any more, or that no Policy refuses it.
	endsToWait = onUpdate(func(before, after client.Object) bool {
		return plan.HoldsBack(before.(*addonsv1.HelmReleaseProxy)) && !plan.HoldsBack(after.(*addonsv1.HelmReleaseProxy))
	})
	// refusal passes updates that show that Fleet begins or ends to refuse a Bundle.
	refusal = onUpdate(func(before, after client.Object) bool {
		return store.IsRefused(before.(*fleetv1.Bundle)) != store.IsRefused(after.(*fleetv1.Bundle))
	})
	comesOrGoes = onUpdate(func(client.Object, client.Object) bool { return false })
	// policiesCRD passes the CRD of Fleet's Policies when it comes or goes.
	policiesCRD = predicate.And[client.Object](finalizersChanged, predicate.NewPredicateFuncs(func(crd client.Object) bool { return crd.GetName() == fleetpolicy.CRD }))
)
