package admission

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Anyone who may create objects in one namespace decides how large they are, but everyone
// waits for the webhooks that fail closed. So the cache keeps a bounded part of each object.
const (
	// maxLabels is how many bytes the labels of a Cluster may take: some hundred labels. A
	// Cluster with more is kept without them: see hasAllLabels.
	maxLabels = 16 << 10
	// labelOverhead is what a label takes beside its key and value: a place in a map that
	// may be half empty, and the rounding up of its strings.
	labelOverhead = 96
	// maxOwners is how many owners of a Fleet Cluster are kept. Usually it has one.
	maxOwners = 8
)

// trim is the cache's transform: it keeps what policies need. Of a Cluster it keeps the
// labels, which may select it, and the pin; of a Fleet Cluster, whose it is; of a
// ClusterClass, that it exists. Its input may be trimmed already.
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
		trimmed.OwnerReferences = clusterOwners(whole)
		trimmed.Annotations = bounds.Names(before.Annotations, stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation, stamp.AdoptAnnotation)
		if stamp.IsOurs(whole) {
			trimmed.ManagedFields = oursAlone
		}
	}
	return trimmed, nil
}

// oursAlone stands for every sign that a Fleet Cluster is ours. Thousands of objects share it.
var oursAlone = []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager}}

// labelsLeftOut is an operation that the API server never stores.
const labelsLeftOut metav1.ManagedFieldsOperationType = "LabelsLeftOut"

// withoutLabels marks a Cluster whose labels were left out.
var withoutLabels = []metav1.ManagedFieldsEntry{{Operation: labelsLeftOut}}

// hasAllLabels reports whether a cached Cluster has all its labels. If not, it is unknown
// whether a selector matches it.
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

// clusterOwners returns the CAPI Clusters that own a Fleet Cluster; if there are too many,
// only the one that it counts as made from.
func clusterOwners(fleetCluster *object) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, owner := range fleetCluster.OwnerReferences {
		if !stamp.IsCluster(owner) {
			continue
		}
		if len(owners) == maxOwners {
			origin := stamp.OriginOf(fleetCluster)
			return []metav1.OwnerReference{ownedBy(origin.Name, origin.UID)}
		}
		owners = append(owners, ownedBy(owner.Name, owner.UID))
	}
	return owners
}

func ownedBy(name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: clusterKind.GroupVersion().String(), Kind: clusterKind.Kind,
		Name: bounds.Name(name), UID: types.UID(bounds.Name(string(uid))),
	}
}
