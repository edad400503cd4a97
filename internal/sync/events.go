package sync

import (
	"context"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// enqueuer specifies which keys an object's change concerns. On an update, enqueue asks it about
// both the old and the new object, so that both classes of a rebased Cluster are reconciled.
type enqueuer struct {
	client.Reader
	settings *settings.Reader
}

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

// rivals returns the Clusters that may have waited for a deleted Cluster: those pinned to the same
// Fleet Cluster, and those pinned to another Fleet Cluster of the deleted Cluster.
func (e *enqueuer) rivals(ctx context.Context, object client.Object) []reconcile.Request {
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
	namespaces := map[string]bool{object.GetNamespace(): true}
	for _, cluster := range e.clusters(ctx, client.MatchingFields{byClass: client.ObjectKeyFromObject(object).String()}) {
		namespaces[cluster.Namespace] = true
	}
	// A retained or moved Cluster's Fleet Cluster may be the only user left.
	for _, cluster := range e.fleetClusters(ctx, client.MatchingFields{byGroup: stamp.GroupName(object.GetName(), object.GetNamespace())}) {
		namespaces[cluster.Namespace] = true
	}
	return namespaceRequests(namespaces)
}

// clustersOfClass returns the Clusters of a class, and the Clusters whose group it displaces.
func (e *enqueuer) clustersOfClass(ctx context.Context, object client.Object) []reconcile.Request {
	return append(
		e.clusterRequests(ctx, client.MatchingFields{byClass: client.ObjectKeyFromObject(object).String()}),
		e.clusterRequests(ctx, client.InNamespace(object.GetNamespace()), client.MatchingFields{byGroup: object.GetName()})...)
}

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

// clustersOfMapping returns the Clusters that use a mapping. If the mapping has begun to map, these are
// all Clusters of its namespace: a Bundle may target any of them.
func (e *enqueuer) clustersOfMapping(ctx context.Context, object client.Object) []reconcile.Request {
	if object.GetAnnotations()[desired.RetargetAnnotation] != "" {
		return e.clusterRequests(ctx, client.InNamespace(object.GetName()))
	}
	return e.clusterRequests(ctx, client.InNamespace(object.GetName()), client.MatchingFields{byClassNamespace: object.GetNamespace()})
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

// clusterOfHome returns the Cluster whose Fleet Cluster Fleet has made a Namespace for.
func (e *enqueuer) clusterOfHome(ctx context.Context, namespace client.Object) []reconcile.Request {
	its := namespace.GetAnnotations()
	var fleet fleetv1.Cluster
	key := types.NamespacedName{Namespace: its[fleetv1.ClusterNamespaceAnnotation], Name: its[fleetv1.ClusterAnnotation]}
	if err := e.Get(ctx, key, &fleet, client.UnsafeDisableDeepCopy); err != nil { // Its own event follows.
		return nil
	}
	return e.clusterOfFleetCluster(ctx, &fleet)
}

func (e *enqueuer) allClusters(ctx context.Context, _ client.Object) []reconcile.Request {
	return e.clusterRequests(ctx)
}

// allNamespaces returns all namespaces, and those that mappings name, whether they exist or a FleetAddonConfig asks for them.
func (e *enqueuer) allNamespaces(ctx context.Context, config client.Object) []reconcile.Request {
	namespaces := map[string]bool{}
	for _, key := range settings.MappingsOf(config.(*addonsv1.FleetAddonConfig)) {
		namespaces[key.Name] = true
	}
	var mappings fleetv1.BundleNamespaceMappingList
	e.list(ctx, &mappings)
	for i := range mappings.Items {
		namespaces[mappings.Items[i].Name] = true
	}
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	e.list(ctx, all)
	for i := range all.Items {
		namespaces[all.Items[i].Name] = true
	}
	return namespaceRequests(namespaces)
}

func namespaceRequests(namespaces map[string]bool) (result []reconcile.Request) {
	for name := range namespaces {
		result = append(result, requests(types.NamespacedName{Name: name})...)
	}
	return result
}

func (e *enqueuer) clusterRequests(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	var result []reconcile.Request
	for _, cluster := range e.clusters(ctx, options...) {
		result = append(result, requests(client.ObjectKeyFromObject(&cluster))...)
	}
	return result
}

// clusters lists Clusters from the cache, read-only.
func (e *enqueuer) clusters(ctx context.Context, options ...client.ListOption) []clusterv1.Cluster {
	var clusters clusterv1.ClusterList
	e.list(ctx, &clusters, options...)
	return clusters.Items
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

// settingsNews passes changes to the settings that the syncer acts on. The other settings concern the
// webhook, or Fleet itself.
var settingsNews = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*addonsv1.FleetAddonConfig).Spec, e.ObjectNew.(*addonsv1.FleetAddonConfig).Spec
		return !equality.Semantic.DeepEqual(before.Cluster, after.Cluster) || !equality.Semantic.DeepEqual(before.ClusterClass, after.ClusterClass) ||
			!equality.Semantic.DeepEqual(before.Rancher, after.Rancher)
	},
}

// existence passes objects that appear and disappear.
var existence = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() },
}

// homeNews passes Namespaces of Fleet's that appear, disappear or begin to go.
var homeNews = predicate.And(
	predicate.NewPredicateFuncs(func(object client.Object) bool { return stamp.IsFleetNamespace(object.GetAnnotations()) }),
	predicate.Or[client.Object](existence, predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
		},
	}))

// existenceOrMaker passes objects that appear, disappear, or become Muster's or another's.
var existenceOrMaker = predicate.Or[client.Object](existence, predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return stamp.IsOurs(e.ObjectOld) != stamp.IsOurs(e.ObjectNew) },
})

// mappingNews passes mappings that existenceOrMaker passes, or that begin to map.
var mappingNews = predicate.Or(existenceOrMaker, predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetAnnotations()[desired.RetargetAnnotation] != e.ObjectNew.GetAnnotations()[desired.RetargetAnnotation]
	},
})

// created passes objects that appear.
var created = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return true },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// unimported passes Clusters found at a start whose status does not say that they are imported. They
// need not wait for the thousands of imported Clusters.
var unimported = predicate.And(created, predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
	return e.IsInInitialList && !meta.IsStatusConditionTrue(e.Object.(*clusterv1.Cluster).Status.Conditions, addonsv1.FleetImportedCondition)
}})

// removed passes objects that disappear.
var removed = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// disowned passes Fleet Clusters that disappear, start or stop being Muster's, or change their
// Cluster.
var disowned = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return stamp.IsOurs(e.ObjectOld) != stamp.IsOurs(e.ObjectNew) || stamp.OriginOf(e.ObjectOld) != stamp.OriginOf(e.ObjectNew)
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
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

// labelsOrExistence passes objects that appear, disappear, or change labels or annotations.
var labelsOrExistence = predicate.Or[client.Object](existence, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{})

// useNews passes changes to the class for which a Fleet Cluster keeps a group and a mapping: changes
// of its labels, and of its owner.
var useNews = predicate.Or[client.Object](labelsOrExistence, disowned)

// specOrLabels passes events that can change which class a Cluster uses, its deletion included.
var specOrLabels = predicate.Or[client.Object](labelsOrExistence, predicate.GenerationChangedPredicate{})

// fleetClusterNews passes changes that concern a Fleet Cluster's CAPI Cluster. It ignores a status
// that is not mirrored. It passes the first heartbeat, and the first after a long silence. It passes
// every heartbeat of an agent that registers itself, because its Cluster may be waiting for any of
// them.
func fleetClusterNews(m bundlesReady) predicate.Predicate {
	return predicate.Or[client.Object](specOrLabels, predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*fleetv1.Cluster), e.ObjectNew.(*fleetv1.Cluster)
			seen, now := before.Status.Agent.LastSeen, after.Status.Agent.LastSeen
			return m.condition(before) != m.condition(after) ||
				before.Status.Namespace != after.Status.Namespace ||
				before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
				seen.IsZero() != now.IsZero() || after.Spec.KubeConfigSecret == "" && !seen.Equal(&now) ||
				!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences)
		},
	})
}
