package admission

import (
	"context"
	"fmt"
	"slices"
	"sync"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// pinIndex finds Clusters that are pinned to a name other than their own.
	pinIndex = "pin"
	// claimIndex finds Clusters and Fleet Clusters by the namespace that Fleet derives for them, if they may share
	// it.
	claimIndex = "claim"
)

var (
	clusterKind      = clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind)
	classKind        = clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind)
	fleetClusterKind = fleetv1.SchemeGroupVersion.WithKind("Cluster")
	namespaceKind    = corev1.SchemeGroupVersion.WithKind("Namespace")
)

// object is the part of other objects that policies see: their metadata.
type object = metav1.PartialObjectMetadata

// inventory answers questions about objects other than the one under review. If it does not know, it finds nothing,
// or known is false, and the policies neither refuse nor warn.
type inventory interface {
	fleetCluster(ctx context.Context, key types.NamespacedName) (found *object, known bool, err error)
	// hasCluster reports whether a Cluster exists, with this UID unless the UID is empty.
	hasCluster(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error)
	// pinnedTo returns the Clusters of a namespace that are pinned to a Fleet Cluster.
	pinnedTo(ctx context.Context, namespace, fleetCluster string) ([]object, error)
	// claims returns the claims of the Fleet Clusters and pins for which Fleet derives this namespace, and the
	// annotations of the Namespace if it exists.
	claims(ctx context.Context, fleetNamespace string) (all []stamp.FleetClaim, annotations map[string]string, err error)
	hasClass(ctx context.Context, key types.NamespacedName) (found, known bool, err error)
	// clusters returns all Clusters; callers must not change them. The labels of some are unknown: see
	// hasAllLabels.
	clusters(ctx context.Context) (all []object, known bool, err error)
}

// Inventory is the metadata of the existing CAPI Clusters, ClusterClasses and Fleet Clusters. It watches each kind once
// the API server serves it: Cluster API and Fleet may be installed later. Until then the webhook is ready and skips the
// checks that need the kind.
type Inventory struct {
	newCache   kinds.NewCache
	namespaces client.Reader

	mu     sync.RWMutex
	listed map[schema.GroupVersionKind]kinds.Listed
}

var _ inventory = (*Inventory)(nil)

// NewInventory returns the inventory of a manager's API server. The manager must run it.
func NewInventory(mgr ctrl.Manager) *Inventory {
	return &Inventory{
		newCache: kinds.CachesOf(mgr, cache.Options{DefaultTransform: trim}), namespaces: mgr.GetClient(), listed: map[schema.GroupVersionKind]kinds.Listed{},
	}
}

// Start fills the inventory and keeps it current until the context ends.
func (i *Inventory) Start(ctx context.Context) error {
	for kind, indexes := range map[schema.GroupVersionKind]map[string]client.IndexerFunc{
		clusterKind:      {pinIndex: pinElsewhere, claimIndex: claimedBy(pinClaim)},
		fleetClusterKind: {claimIndex: claimedBy(fleetClaim)},
		classKind:        nil,
	} {
		go kinds.Watch(ctx, i.newCache, kinds.Of(ofKind(kind), indexes), func(listed kinds.Listed) { i.note(ctx, kind, listed) })
	}
	<-ctx.Done()
	return nil
}

// note notes whether the objects of a kind are known.
func (i *Inventory) note(ctx context.Context, kind schema.GroupVersionKind, listed kinds.Listed) {
	i.mu.Lock()
	defer i.mu.Unlock()
	log := ctrl.LoggerFrom(ctx).WithName("inventory").WithValues("kind", kind.GroupKind().String())
	switch before := i.listed[kind]; {
	case listed.Err != nil:
		log.Info("Skipping checks that need this kind until it is served", "reason", listed.Err.Error())
	case before.Err != nil:
		log.Info("This kind is served; its checks are no longer skipped")
	}
	i.listed[kind] = listed
}

// reader returns a reader of a kind, or nil if its objects are not known.
func (i *Inventory) reader(kind schema.GroupVersionKind) client.Reader {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if objects := i.listed[kind].Objects; objects != nil {
		return objects
	}
	return nil
}

func (i *Inventory) get(ctx context.Context, kind schema.GroupVersionKind, key types.NamespacedName) (found *object, known bool, err error) {
	reader := i.reader(kind)
	if reader == nil {
		return nil, false, nil
	}
	found = ofKind(kind)
	if err := reader.Get(ctx, key, found); apierrors.IsNotFound(err) {
		return nil, true, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("reading the cached %s: %w", kind.Kind, err)
	}
	return found, true, nil
}

func (i *Inventory) fleetCluster(ctx context.Context, key types.NamespacedName) (found *object, known bool, err error) {
	return i.get(ctx, fleetClusterKind, key)
}

func (i *Inventory) hasCluster(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
	cluster, _, err := i.get(ctx, clusterKind, key)
	return cluster != nil && (uid == "" || cluster.UID == uid), err
}

func (i *Inventory) hasClass(ctx context.Context, key types.NamespacedName) (found, known bool, err error) {
	class, known, err := i.get(ctx, classKind, key)
	return class != nil, known, err
}

func (i *Inventory) pinnedTo(ctx context.Context, namespace, fleetCluster string) ([]object, error) {
	all, known, err := i.list(ctx, clusterKind, client.InNamespace(namespace), client.MatchingFields{pinIndex: fleetCluster})
	if err != nil || !known {
		return nil, err
	}
	// Nearly every Cluster is pinned to its own name, and the index leaves these out.
	namesake, _, err := i.get(ctx, clusterKind, types.NamespacedName{Namespace: namespace, Name: fleetCluster})
	if err != nil {
		return nil, err
	}
	if namesake != nil && stamp.PinOf(namesake.Annotations).ClusterName == fleetCluster {
		all = append(all, *namesake)
	}
	return all, nil
}

func (i *Inventory) claims(ctx context.Context, fleetNamespace string) (all []stamp.FleetClaim, annotations map[string]string, err error) {
	namespace := ofKind(namespaceKind)
	if err := i.namespaces.Get(ctx, types.NamespacedName{Name: fleetNamespace}, namespace); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("reading Namespace: %w", err)
	}
	for kind, claim := range claimsOf {
		found, _, err := i.list(ctx, kind, client.MatchingFields{claimIndex: fleetNamespace})
		if err != nil {
			return nil, nil, err
		}
		for i := range found {
			all = append(all, claim(&found[i]))
		}
	}
	return all, namespace.Annotations, nil
}

func (i *Inventory) clusters(ctx context.Context) (all []object, known bool, err error) {
	return i.list(ctx, clusterKind)
}

func (i *Inventory) list(ctx context.Context, kind schema.GroupVersionKind, options ...client.ListOption) (all []object, known bool, err error) {
	reader := i.reader(kind)
	if reader == nil {
		return nil, false, nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := reader.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, false, fmt.Errorf("listing the cached %ss: %w", kind.Kind, err)
	}
	return list.Items, true, nil
}

func ofKind(kind schema.GroupVersionKind) *object {
	result := &object{}
	result.SetGroupVersionKind(kind)
	return result
}

func pinElsewhere(cluster client.Object) []string {
	if name := stamp.PinOf(cluster.GetAnnotations()).ClusterName; name != "" && name != cluster.GetName() {
		return []string{name}
	}
	return nil
}

// fleetClaim returns the claim of a Fleet Cluster. pinClaim returns the claim of a Cluster with a pin.
func fleetClaim(fleetCluster client.Object) stamp.FleetClaim {
	return stamp.FleetClaim{NamespacedName: client.ObjectKeyFromObject(fleetCluster), Since: fleetCluster.GetCreationTimestamp().Time}
}

func pinClaim(cluster client.Object) stamp.FleetClaim {
	return stamp.FleetClaim{NamespacedName: types.NamespacedName{Namespace: cluster.GetNamespace(), Name: stamp.PinOf(cluster.GetAnnotations()).ClusterName}}
}

// claimsOf maps each kind of object with claims to the function that returns its claim.
var claimsOf = map[schema.GroupVersionKind]func(client.Object) stamp.FleetClaim{fleetClusterKind: fleetClaim, clusterKind: pinClaim}

func claimedBy(claim func(client.Object) stamp.FleetClaim) client.IndexerFunc {
	return func(object client.Object) []string {
		claim := claim(object)
		if claim.Name == "" || !stamp.CanShareFleetNamespace(claim.Namespace, claim.Name) {
			return nil
		}
		return []string{stamp.FleetNamespace(claim.Namespace, claim.Name)}
	}
}

// A user who may create objects in a single namespace decides how large they are, but everyone depends on the
// fail-closed webhooks. So the cache keeps only a limited part of each object.
const (
	// maxLabels is the number of bytes that the labels of a Cluster may take, enough for some hundred labels. If a
	// Cluster has more, the cache keeps it without labels: see hasAllLabels.
	maxLabels = 16 << 10
	// labelOverhead is the memory that a label takes in addition to its key and value: a place in a map that may be
	// half empty, and the rounding up of its strings.
	labelOverhead = 96
)

// trim is the cache's transform, and keeps only the fields that policies need: for a Cluster the labels, which may
// select it, and the pin; for a Fleet Cluster what shows whose it is; for a ClusterClass that it exists. The input
// may be trimmed already.
func trim(cached any) (any, error) {
	trimmed, ok := cached.(*object)
	if !ok {
		return cached, nil
	}
	before := trimmed.ObjectMeta
	trimmed.ObjectMeta = metav1.ObjectMeta{
		Namespace: before.Namespace, Name: before.Name,
		UID: before.UID, ResourceVersion: before.ResourceVersion, CreationTimestamp: before.CreationTimestamp, DeletionTimestamp: before.DeletionTimestamp,
	}
	switch trimmed.GroupVersionKind().GroupKind() {
	case clusterKind.GroupKind():
		if labelsTake(before.Labels) <= maxLabels && hasAllLabels(&object{ObjectMeta: before}) {
			trimmed.Labels = before.Labels
		} else {
			trimmed.ManagedFields = withoutLabels
		}
		trimmed.Annotations = bounds.Names(before.Annotations, stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation, stamp.RegistrationAnnotation)
	case fleetClusterKind.GroupKind():
		whole := &object{ObjectMeta: before}
		whole.OwnerReferences = nil
		for _, owner := range before.OwnerReferences {
			if stamp.IsCluster(owner) {
				whole.OwnerReferences = append(whole.OwnerReferences, owner)
			}
		}
		trimmed.OwnerReferences = stamp.BoundedOwners(whole)
		trimmed.Labels = bounds.Names(before.Labels, stamp.RancherClusterLabel)
		trimmed.Annotations = bounds.Names(before.Annotations, stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation, stamp.AdoptAnnotation)
		if stamp.IsOurs(whole) {
			trimmed.ManagedFields = oursAlone
		}
	}
	return trimmed, nil
}

// oursAlone replaces the managed fields of every Fleet Cluster that is ours. Thousands of objects share it.
var oursAlone = []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager}}

// labelsLeftOut is an operation that the API server never stores.
const labelsLeftOut metav1.ManagedFieldsOperationType = "LabelsLeftOut"

// withoutLabels marks a Cluster whose labels trim left out.
var withoutLabels = []metav1.ManagedFieldsEntry{{Operation: labelsLeftOut}}

// hasAllLabels reports whether a cached Cluster has all its labels. If not, we cannot know whether a selector
// matches it.
func hasAllLabels(cluster *object) bool {
	return !slices.ContainsFunc(cluster.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool { return entry.Operation == labelsLeftOut })
}

func labelsTake(labels map[string]string) int {
	bytes := 0
	for key, value := range labels {
		bytes += len(key) + len(value) + labelOverhead
	}
	return bytes
}
