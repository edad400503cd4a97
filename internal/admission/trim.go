package admission

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/stamp"
)

// Whoever may create objects in one namespace decides how large they are, and everybody
// waits for the entries that fail closed. So what is kept of each is bounded.
const (
	// maxLabels is how many bytes the labels of a Cluster may take, some hundred labels. A
	// Cluster with more is kept without them: see hasAllLabels.
	maxLabels = 16 << 10
	// labelOverhead is what a label takes beside its key and value: its place in a map that
	// may be half empty, and what its strings are rounded up to.
	labelOverhead = 96
	// maxValue bounds a string that names something. It is one more than any name has, so
	// that what is cut names nothing still.
	maxValue = validation.DNS1123SubdomainMaxLength + 1
	// maxOwners is how many owners of a Fleet Cluster are kept. It has one as a rule.
	maxOwners = 8
)

// trim is the cache's transform: it leaves what policies ask for. Of a Cluster these are
// its labels, by which it may be selected, and its pin; of a Fleet Cluster, whose it is; of
// a ClusterClass, that it is there. It may see again what it has trimmed.
func trim(cached any) (any, error) {
	trimmed, ok := cached.(*object)
	if !ok {
		return cached, nil
	}
	before := trimmed.ObjectMeta
	trimmed.ObjectMeta = metav1.ObjectMeta{
		Namespace: before.Namespace, Name: before.Name,
		UID: before.UID, ResourceVersion: before.ResourceVersion, DeletionTimestamp: before.DeletionTimestamp,
	}
	switch trimmed.GroupVersionKind().GroupKind() {
	case clusterKind.GroupKind():
		if labelsTake(before.Labels) <= maxLabels && hasAllLabels(&object{ObjectMeta: before}) {
			trimmed.Labels = before.Labels
		} else {
			trimmed.ManagedFields = withoutLabels
		}
		trimmed.Annotations = cutValues(before.Annotations, stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation)
	case fleetClusterKind.GroupKind():
		whole := &object{ObjectMeta: before}
		trimmed.OwnerReferences = clusterOwners(whole)
		trimmed.Annotations = cutValues(before.Annotations, stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation, stamp.AdoptAnnotation)
		if stamp.IsOurs(whole) {
			trimmed.ManagedFields = oursAlone
		}
	}
	return trimmed, nil
}

// oursAlone stands for all ways in which a Fleet Cluster says that it is ours. Thousands
// share it.
var oursAlone = []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager}}

// labelsLeftOut is an operation that the API server lets nobody write.
const labelsLeftOut metav1.ManagedFieldsOperationType = "LabelsLeftOut"

// withoutLabels says of a Cluster that its labels are not those it has.
var withoutLabels = []metav1.ManagedFieldsEntry{{Operation: labelsLeftOut}}

// hasAllLabels reports whether the labels of a cached Cluster are those it has. If not,
// nobody can tell whether a selector matches it.
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

// clusterOwners returns the CAPI Clusters that own a Fleet Cluster; of too many, the one
// that it counts as made from.
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
		Name: cut(name), UID: types.UID(cut(string(uid))),
	}
}

// cutValues returns the annotations of these keys.
func cutValues(annotations map[string]string, keys ...string) map[string]string {
	var kept map[string]string
	for _, key := range keys {
		if value, found := annotations[key]; found {
			if kept == nil {
				kept = make(map[string]string, len(keys))
			}
			kept[key] = cut(value)
		}
	}
	return kept
}

// cut returns what of a value is kept: all of it, if it can name anything.
func cut(value string) string {
	if len(value) <= maxValue {
		return value
	}
	return strings.Clone(value[:maxValue]) // A part keeps the whole in memory.
}
