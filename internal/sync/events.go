package sync

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// enqueuer specifies which keys an object's change concerns. On an update, enqueue asks it about
// both the old and the new object, so that both classes of a rebased Cluster are reconciled.
type enqueuer struct{ client.Reader }

var enqueue = handler.EnqueueRequestsFromMapFunc

// requests returns a request for each key with a name; the keys of an empty use have none.
func requests(keys ...types.NamespacedName) []reconcile.Request {
	var result []reconcile.Request
	for _, key := range keys {
		if key.Name != "" {
			result = append(result, reconcile.Request{NamespacedName: key})
		}
	}
	return result
}

// clustersWaitingFor returns the Clusters that may have waited for a deleted Cluster: those pinned to the same
// Fleet Cluster, and those pinned to another Fleet Cluster of the deleted Cluster.
func (e *enqueuer) clustersWaitingFor(ctx context.Context, object client.Object) []reconcile.Request {
	inNamespace := client.InNamespace(object.GetNamespace())
	var result []reconcile.Request
	if name := stamp.PinOf(object.GetAnnotations()).ClusterName; name != "" {
		result = e.clusterRequests(ctx, inNamespace, client.MatchingFields{byPin: name})
	}
	for _, origin := range []string{originUID(object.GetUID()), originName(object.GetName())} {
		for _, fleetCluster := range e.fleetClusters(ctx, inNamespace, client.MatchingFields{byOrigin: origin}) {
			result = append(result, e.clusterOfFleetCluster(ctx, &fleetCluster)...)
		}
	}
	return result
}

// namespacesOfClass returns the namespaces whose groups have the labels of a class: its own, and those of its users.
func (e *enqueuer) namespacesOfClass(ctx context.Context, object client.Object) []reconcile.Request {
	result := namespaceOf(ctx, object)
	for _, cluster := range e.clusterRequests(ctx, client.MatchingFields{byClass: client.ObjectKeyFromObject(object).String()}) {
		result = append(result, requests(types.NamespacedName{Name: cluster.Namespace})...)
	}
	// A deselected or moved Cluster's Fleet Cluster may be the only user left.
	for _, cluster := range e.fleetClusters(ctx, client.MatchingFields{byGroup: stamp.GroupName(object.GetName(), object.GetNamespace())}) {
		result = append(result, namespaceOf(ctx, &cluster)...)
	}
	return result
}

// clustersOfClass returns the Clusters of a class, and the Clusters whose group it displaces.
func (e *enqueuer) clustersOfClass(ctx context.Context, object client.Object) []reconcile.Request {
	return append(
		e.clusterRequests(ctx, client.MatchingFields{byClass: client.ObjectKeyFromObject(object).String()}),
		e.clusterRequests(ctx, client.InNamespace(object.GetNamespace()), client.MatchingFields{byGroup: object.GetName()})...)
}

// clustersInNamespace returns the Clusters of the namespace that is called like the object: a Namespace, or a mapping. A
// Bundle of a mapping may target any of them.
func (e *enqueuer) clustersInNamespace(ctx context.Context, object client.Object) []reconcile.Request {
	return e.clusterRequests(ctx, client.InNamespace(object.GetName()))
}

// clustersOfGroup returns the Clusters that a group was made for: their Fleet Clusters carry
// a hash of its UID.
func (e *enqueuer) clustersOfGroup(ctx context.Context, object client.Object) []reconcile.Request {
	inNamespace := client.InNamespace(object.GetNamespace())
	result := append(
		e.clusterRequests(ctx, inNamespace, client.MatchingFields{byGroup: object.GetName()}),
		e.clusterRequests(ctx, inNamespace, client.MatchingFields{byClass: client.ObjectKeyFromObject(object).String()})...)
	for _, attached := range e.fleetClusters(ctx, inNamespace, client.MatchingFields{byWorkspaceGroup: object.GetName()}) {
		result = append(result, requests(rancher.AttachedCluster(&attached))...)
	}
	return result
}

func (e *enqueuer) clustersReferringTo(ctx context.Context, object client.Object) []reconcile.Request {
	kind := object.GetObjectKind().GroupVersionKind()
	return e.clusterRequests(ctx, client.InNamespace(object.GetNamespace()),
		client.MatchingFields{references.ByReference: references.ReferenceKey(kind.Group, kind.Kind, object.GetName())})
}

// clustersOfKind returns the Clusters that refer to an object of a CRD's kind.
func (e *enqueuer) clustersOfKind(ctx context.Context, object client.Object) []reconcile.Request {
	return e.clusterRequests(ctx, client.MatchingFields{references.ByKind: object.GetName()})
}

// clusterOfFleetCluster returns the Cluster that a Fleet Cluster was made from, and the Clusters that
// may be waiting for its name.
func (e *enqueuer) clusterOfFleetCluster(ctx context.Context, object client.Object) []reconcile.Request {
	namespace := object.GetNamespace()
	keys := []types.NamespacedName{{Namespace: namespace, Name: object.GetAnnotations()[stamp.ImportedFromAnnotation]}}
	for _, owner := range object.GetOwnerReferences() {
		if stamp.IsCluster(owner) {
			keys = append(keys, types.NamespacedName{Namespace: namespace, Name: owner.Name})
		}
	}
	return append(requests(keys...),
		e.clusterRequests(ctx, client.InNamespace(namespace), client.MatchingFields{byPin: object.GetName()})...)
}

// clusterOfFleetNamespace returns the Cluster whose Fleet Cluster Fleet has made a Namespace for.
func (e *enqueuer) clusterOfFleetNamespace(ctx context.Context, namespace client.Object) []reconcile.Request {
	its := namespace.GetAnnotations()
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: its[fleetv1.ClusterNamespaceAnnotation], Name: its[fleetv1.ClusterAnnotation]}}
	_ = e.Get(ctx, client.ObjectKeyFromObject(fleet), fleet, client.UnsafeDisableDeepCopy) // It may not exist.
	return e.clusterOfFleetCluster(ctx, fleet)
}

// clustersInConflict returns the Clusters that may be waiting for a Namespace of Fleet's to go: they may be another tenant's, and
// many.
func (e *enqueuer) clustersInConflict(ctx context.Context, namespace client.Object) []reconcile.Request {
	return e.clusterRequests(ctx, client.MatchingFields{byConflict: namespace.GetName()})
}

func (e *enqueuer) allClusters(ctx context.Context, _ client.Object) []reconcile.Request {
	return e.clusterRequests(ctx)
}

// allNamespaces returns all namespaces, and those that mappings name, whether they exist or a FleetAddonConfig asks for them.
func (e *enqueuer) allNamespaces(ctx context.Context, config client.Object) []reconcile.Request {
	var result []reconcile.Request
	for _, key := range settings.MappingsOf(config.(*addonsv1.FleetAddonConfig)) {
		result = append(result, requests(types.NamespacedName{Name: key.Name})...)
	}
	var mappings fleetv1.BundleNamespaceMappingList
	e.list(ctx, &mappings)
	for i := range mappings.Items {
		result = append(result, namespaceOfMapping(ctx, &mappings.Items[i])...)
	}
	var namespaces metav1.PartialObjectMetadataList
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	e.list(ctx, &namespaces)
	for i := range namespaces.Items {
		result = append(result, itself(ctx, &namespaces.Items[i])...)
	}
	return result
}

func (e *enqueuer) clusterRequests(ctx context.Context, options ...client.ListOption) (result []reconcile.Request) {
	var clusters clusterv1.ClusterList
	e.list(ctx, &clusters, options...)
	for i := range clusters.Items {
		result = append(result, itself(ctx, &clusters.Items[i])...)
	}
	return result
}

// fleetClusters lists Fleet Clusters from the cache, read-only.
func (e *enqueuer) fleetClusters(ctx context.Context, options ...client.ListOption) []fleetv1.Cluster {
	var clusters fleetv1.ClusterList
	e.list(ctx, &clusters, options...)
	return clusters.Items
}

func (e *enqueuer) list(ctx context.Context, list client.ObjectList, options ...client.ListOption) {
	if err := e.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing from the cache failed; the change is missed until the next resync", "list", list.GetObjectKind())
	}
}

// afterStart passes everything but objects found at startup.
var afterStart = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
}

// changes passes objects that appear or disappear, and updates that change what a function returns of the object.
func changes(of func(client.Object) []any) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || !equality.Semantic.DeepEqual(of(e.ObjectOld), of(e.ObjectNew))
	}}
}

// settingsNews passes changes to the settings that the syncer acts on. The other settings concern the
// webhook, or Fleet itself.
var settingsNews = changes(func(config client.Object) []any {
	spec := config.(*addonsv1.FleetAddonConfig).Spec
	return []any{spec.Cluster, spec.ClusterClass, spec.Rancher}
})

// fleetNamespaceNews passes Namespaces of Fleet's that appear, disappear or begin to go.
var fleetNamespaceNews = predicate.And(
	predicate.NewPredicateFuncs(func(object client.Object) bool { return stamp.IsFleetNamespace(object.GetAnnotations()) }),
	changes(func(object client.Object) []any { return []any{object.GetDeletionTimestamp().IsZero()} }))

// existence passes objects that appear or disappear.
var existence = changes(func(client.Object) []any { return nil })

// existenceOrMaker passes objects that appear, disappear, or become Muster's or another's.
var existenceOrMaker = changes(func(object client.Object) []any { return []any{stamp.IsOurs(object)} })

// mappingNews passes mappings that existenceOrMaker passes, or that begin to map.
var mappingNews = changes(func(mapping client.Object) []any {
	return []any{stamp.IsOurs(mapping), mapping.GetAnnotations()[desired.RetargetAnnotation]}
})

// labelsOrExistence passes objects that appear, disappear, or change labels or annotations.
var labelsOrExistence = changes(func(object client.Object) []any { return []any{object.GetLabels(), object.GetAnnotations()} })

// useNews passes changes to the class for which a Fleet Cluster keeps a group and a mapping: changes
// of its labels, and of its owner.
var useNews = changes(func(object client.Object) []any {
	return []any{object.GetLabels(), object.GetAnnotations(), stamp.IsOurs(object), stamp.OriginOf(object)}
})

// specOrLabels passes events that can change which class a Cluster uses, its deletion included.
var specOrLabels = changes(func(object client.Object) []any {
	return []any{object.GetLabels(), object.GetAnnotations(), object.GetGeneration()}
})

// fleetClusterNews passes changes that concern a Fleet Cluster's CAPI Cluster. It ignores a status
// that is not mirrored. It passes the first heartbeat, and the first after a long silence. It passes
// every heartbeat of an agent that registers itself, because its Cluster may be waiting for any of
// them.
func fleetClusterNews(m bundlesReady) predicate.Predicate {
	return changes(func(object client.Object) []any {
		its := object.(*fleetv1.Cluster)
		var heartbeat metav1.Time
		if its.Spec.KubeConfigSecret == "" {
			heartbeat = its.Status.Agent.LastSeen
		}
		return []any{
			its.Labels, its.Annotations, its.Generation, its.OwnerReferences, its.DeletionTimestamp.IsZero(),
			m.condition(its), its.Status.Namespace, its.Status.Agent.LastSeen.IsZero(), heartbeat,
		}
	})
}

// removed passes objects that disappear.
var removed = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(event.UpdateEvent) bool { return false },
}

// watched passes objects that the watch filter lets through, and objects that a new label has just
// excluded, so that the syncer stops counting them.
func watched(filter string) predicate.Predicate {
	passes := predicate.NewPredicateFuncs(func(object client.Object) bool { return isWatched(object, filter) })
	passes.UpdateFunc = func(e event.UpdateEvent) bool {
		return isWatched(e.ObjectOld, filter) || isWatched(e.ObjectNew, filter)
	}
	return passes
}

// lowPriority is for objects that a change elsewhere concerns, and for polled and failed ones. It is the priority that
// controller-runtime gives to objects found by a start or a resync, below that of an object that has itself changed. Among
// themselves these come in the order in which they were enqueued, so what fails again and again delays nothing else.
const lowPriority = handler.LowPriority

// atLowPriority enqueues the objects that an event concerns, behind objects that have themselves changed: there may be thousands.
// A single one counts as changed.
func atLowPriority(concerned handler.MapFunc) handler.EventHandler {
	return enqueued(concerned, func(count int) priorityqueue.AddOpts {
		if count == 1 {
			return priorityqueue.AddOpts{} // The event's own priority, which is low for objects found at a start.
		}
		return priorityqueue.AddOpts{Priority: new(lowPriority)}
	})
}

// notImportedFirst enqueues Clusters found at a start whose status does not say that they are imported, as if they had changed: they
// need not wait for the thousands of imported Clusters.
var notImportedFirst = handler.Funcs{CreateFunc: func(_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if e.IsInInitialList && !meta.IsStatusConditionTrue(e.Object.(*clusterv1.Cluster).Status.Conditions, addonsv1.FleetImportedCondition) {
		kube.Enqueue(queue, priorityqueue.AddOpts{Priority: new(0)}, requests(client.ObjectKeyFromObject(e.Object))...)
	}
}}

// passInterval is how long the events of the Clusters of a namespace are collected: a pass lists them all, and an import of
// thousands causes an event for each, of which none is known to be the last.
const passInterval = 500 * time.Millisecond

// collected enqueues the objects that an event concerns once in an interval.
func collected(concerned handler.MapFunc, interval time.Duration) handler.EventHandler {
	return enqueued(concerned, func(int) priorityqueue.AddOpts { return priorityqueue.AddOpts{After: interval} })
}

func enqueued(concerned handler.MapFunc, options func(count int) priorityqueue.AddOpts) handler.EventHandler {
	enqueue := func(ctx context.Context, object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		requests := sets.New(concerned(ctx, object)...).UnsortedList() // A Cluster may be concerned in several ways.
		kube.Enqueue(queue, options(len(requests)), requests...)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, queue)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.ObjectNew, queue)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, queue)
		},
	}
}

// itself maps an event to the object that it is about.
func itself(_ context.Context, object client.Object) []reconcile.Request {
	return requests(client.ObjectKeyFromObject(object))
}
