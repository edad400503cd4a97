package stamp

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

// IsOurs reports whether a Fleet object is Muster's to change and delete: Muster made
// it, CAAPF did, or its owner handed it over with the adopt annotation.
//
// Rancher copies the labels of a CAPI Cluster to its Fleet Cluster, perhaps Muster's among them. So one
// with Rancher's label is Muster's only if it also says which Cluster Muster made it from.
func IsOurs(object metav1.Object) bool {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	if labels[RancherClusterLabel] != "" && annotations[ImportedFromAnnotation] == "" && annotations[ImportedUIDAnnotation] == "" {
		return isHandedOver(object)
	}
	return labels[ManagedByLabel] == ManagedBy || isHandedOver(object) || IsManager(object)
}

func isHandedOver(object metav1.Object) bool {
	return object.GetAnnotations()[AdoptAnnotation] == "true"
}

// IsManager reports whether Muster or CAAPF wrote fields of the object.
func IsManager(object metav1.Object) bool {
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool { return IsManagerName(entry.Manager) })
}

// IsManagerName recognizes the field manager that Muster shares with CAAPF, and those that only CAAPF used:
// "<something>-addon-provider-fleet", one per Cluster on shared objects.
func IsManagerName(name string) bool { return strings.HasSuffix("-"+name, "-"+FieldManager) }

// Origin specifies which CAPI Cluster a Fleet Cluster was made from.
type Origin struct {
	// Name is empty if the Fleet Cluster does not say.
	Name string
	// UID is empty if the Fleet Cluster does not say: CAAPF and early versions of Muster made
	// some with neither an owner nor a note of the UID.
	UID types.UID
	// Owned means that the UID comes from an owner reference, by which the garbage collector deletes
	// the Fleet Cluster with its Cluster.
	Owned bool
}

// OriginOf reads the origin of a Fleet Cluster. An owner reference takes precedence over an
// annotation, because Kubernetes acts on it.
func OriginOf(fleetCluster metav1.Object) Origin {
	origin := Origin{Name: fleetCluster.GetAnnotations()[ImportedFromAnnotation]}
	for _, owner := range fleetCluster.GetOwnerReferences() {
		if !IsCluster(owner) {
			continue
		}
		// If there are several owners, take the one that the annotation names, if any.
		if !origin.Owned || owner.Name == fleetCluster.GetAnnotations()[ImportedFromAnnotation] {
			origin = Origin{Name: owner.Name, UID: owner.UID, Owned: true}
		}
	}
	if !origin.Owned {
		origin.UID = types.UID(fleetCluster.GetAnnotations()[ImportedUIDAnnotation])
	}
	return origin
}

// MayBeFrom reports whether a Fleet Cluster may come from the Cluster with this name. Either it notes
// that name, or it notes no name and has the name that the settings give, like a Fleet Cluster of
// CAAPF without owner references.
func MayBeFrom(in settings.Cluster, fleetCluster metav1.Object, cluster string) bool {
	if name := OriginOf(fleetCluster).Name; name != "" {
		return name == cluster
	}
	expected, _ := FleetName(in, cluster)
	return expected == fleetCluster.GetName()
}

// Preferred returns the name of the Fleet Cluster that a Cluster keeps if it has several: the one with
// the expected name, then the oldest, then the first by name.
func Preferred[T any, P interface {
	*T
	metav1.Object
}](several []T, expected string) string {
	best := slices.MinFunc(several, func(a, b T) int { return compare(P(&a), P(&b), expected) })
	return P(&best).GetName()
}

func compare(a, b metav1.Object, expected string) int {
	switch made, since := a.GetCreationTimestamp(), b.GetCreationTimestamp(); {
	case a.GetName() == expected:
		return -1
	case b.GetName() == expected:
		return 1
	case !made.Equal(&since):
		return made.Compare(since.Time)
	default:
		return strings.Compare(a.GetName(), b.GetName())
	}
}

// maxOwners is how many owners of a Fleet Cluster are kept. It has one owner, and a few tools may add
// theirs; a user who may write it can add ten thousand.
const maxOwners = 16

// BoundedOwners returns the owners of a Fleet Cluster as a cache keeps them: a bounded number, the
// origin among them. It drops owners with a name, UID, kind or version that is too long for any
// object.
func BoundedOwners(fleetCluster metav1.Object) []metav1.OwnerReference {
	owners := fleetCluster.GetOwnerReferences()
	isPossible := func(owner metav1.OwnerReference) bool {
		const longest = validation.DNS1123SubdomainMaxLength
		return len(owner.Name) <= longest && len(owner.UID) <= longest && len(owner.Kind) <= longest && len(owner.APIVersion) <= 2*longest
	}
	if len(owners) <= maxOwners && !slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool { return !isPossible(owner) }) {
		return owners
	}
	origin := OriginOf(fleetCluster)
	var bounded []metav1.OwnerReference
	for _, owner := range owners {
		isOrigin := origin.Owned && IsCluster(owner) && owner.UID == origin.UID && owner.Name == origin.Name
		if isPossible(owner) && (len(bounded) < maxOwners || isOrigin && len(bounded) == maxOwners) {
			bounded = append(bounded, owner)
		}
	}
	return bounded
}

// IsCluster reports whether an owner is a CAPI Cluster.
func IsCluster(owner metav1.OwnerReference) bool {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && version.Group == clusterv1.GroupVersion.Group && owner.Kind == clusterv1.ClusterKind
}

// Relation specifies how a Fleet Cluster relates to a CAPI Cluster of its namespace.
type Relation int

// The relations.
const (
	// Foreign means that it belongs to someone else, and is never taken over.
	Foreign Relation = iota
	// Own means that it was made from the Cluster.
	Own
	// HandedOver means that its owner handed it over with the adopt annotation.
	HandedOver
	// EarlierCluster means that it was made from an earlier Cluster of the same name, which still owns it: the
	// garbage collector will delete it.
	EarlierCluster
	// Orphan means that it was made from an earlier Cluster of the same name and has no owner. Fleet assumes that
	// its agent is deployed, but that cluster may be gone.
	Orphan
)

// RelationOf returns how a Fleet Cluster relates to a CAPI Cluster of its namespace. If it is foreign,
// why names its owner and says how to hand it over. RelationOf reads only metadata. A Cluster that is
// being created has no UID yet. Lives reports whether the namespace has a Cluster of that name and
// with that UID; an empty name or UID stands for any.
func RelationOf(fleetCluster, cluster metav1.Object, lives func(name string, uid types.UID) bool) (relation Relation, why string) {
	if slices.ContainsFunc(fleetCluster.GetOwnerReferences(), func(owner metav1.OwnerReference) bool { return IsCluster(owner) && owner.UID == cluster.GetUID() }) {
		if other := preferredOwner(fleetCluster, cluster, lives); other != "" {
			return Foreign, fmt.Sprintf("Fleet Cluster %q belongs to Cluster %q, which owns it, too; remove one of the owners", fleetCluster.GetName(), other)
		}
		return Own, ""
	}
	origin := OriginOf(fleetCluster)
	if !origin.Owned && origin.UID != "" && origin.UID == cluster.GetUID() {
		return Own, ""
	}

	owner := livingOwner(fleetCluster, origin, cluster.GetName(), lives)
	isAnothers := origin.Name != "" && origin.Name != cluster.GetName()
	// To delete it would uninstall what Fleet has deployed there.
	handOver := fmt.Sprintf("; to hand it over with what is deployed there: kubectl annotate clusters.fleet.cattle.io -n %s %s %s=true; delete it only if its cluster is gone",
		fleetCluster.GetNamespace(), fleetCluster.GetName(), AdoptAnnotation)
	switch {
	case owner != "" && (isAnothers || isHandedOver(fleetCluster) || origin.UID != "" && lives("", origin.UID)):
		// To delete it would uninstall what is on that Cluster, and it cannot be handed over.
		return Foreign, fmt.Sprintf("Fleet Cluster %q belongs to Cluster %q, which exists", fleetCluster.GetName(), owner)
	case isHandedOver(fleetCluster):
		return HandedOver, ""
	case isAnothers:
		return Foreign, fmt.Sprintf("Fleet Cluster %q belongs to Cluster %q%s", fleetCluster.GetName(), origin.Name, handOver)
	case !IsOurs(fleetCluster):
		return Foreign, fmt.Sprintf("Fleet Cluster %q was created by someone else%s", fleetCluster.GetName(), handOver)
	case origin.Owned:
		return EarlierCluster, ""
	case origin.Name == "" && fleetCluster.GetName() != cluster.GetName() && lives(fleetCluster.GetName(), ""):
		// CAAPF notes no name, and a pin may name any.
		return Foreign, fmt.Sprintf("Fleet Cluster %q has the name of another Cluster, which exists", fleetCluster.GetName())
	case origin.UID != "", isOlder(fleetCluster, cluster):
		return Orphan, ""
	default:
		return Own, ""
	}
}

// preferredOwner returns the name of another Cluster that a Fleet Cluster with several living owners
// belongs to; empty if it belongs to this one. It belongs to the Cluster that it was made from, or
// else to the one with the smallest UID. Without that rule, a user who may write owner references
// could make two Clusters overwrite one Fleet Cluster in turns forever.
func preferredOwner(fleetCluster, cluster metav1.Object, lives func(string, types.UID) bool) string {
	from := fleetCluster.GetAnnotations()[ImportedFromAnnotation]
	var best *metav1.OwnerReference
	for _, owner := range fleetCluster.GetOwnerReferences() {
		// A user who may write owner references can write any name. So the UID decides which Cluster
		// lives, and all Clusters compare the names in the references, not their own.
		if !IsCluster(owner) || owner.UID != cluster.GetUID() && !lives("", owner.UID) {
			continue
		}
		if best == nil || owner.Name == from && best.Name != from || (owner.Name == from) == (best.Name == from) && owner.UID < best.UID {
			best = &owner
		}
	}
	if best == nil || best.UID == cluster.GetUID() {
		return ""
	}
	return best.Name
}

// livingOwner returns the name, or else the UID, of another existing Cluster that the Fleet
// Cluster belongs to; empty if there is none.
func livingOwner(fleetCluster metav1.Object, origin Origin, self string, lives func(string, types.UID) bool) string {
	for _, owner := range fleetCluster.GetOwnerReferences() {
		// The name may be forged, but who cannot find a Cluster by its UID alone finds it by both.
		if IsCluster(owner) && (lives("", owner.UID) || lives(owner.Name, owner.UID)) {
			return owner.Name
		}
	}
	if !origin.Owned && origin.Name != "" && origin.Name != self && lives(origin.Name, origin.UID) {
		return origin.Name
	}
	if origin.UID != "" && lives("", origin.UID) {
		return string(origin.UID)
	}
	return ""
}

// isOlder reports whether one object was created before another. Timestamps are whole seconds: if two
// objects were created within the same second, neither is older.
func isOlder(one, other metav1.Object) bool {
	made, since := one.GetCreationTimestamp(), other.GetCreationTimestamp()
	return !since.IsZero() && made.Before(&since)
}
