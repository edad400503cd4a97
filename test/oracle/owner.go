package oracle

import (
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// relation says whose a Fleet Cluster is, as seen from a CAPI Cluster.
type relation int

const (
	foreign  relation = iota // It belongs to another client.
	own                      // It belongs to the Cluster.
	handed                   // Its maker hands it over.
	heirloom                 // A deleted namesake's: handed over, and its agent is deployed again.
	orphan                   // A deleted namesake's that has an owner, and must go first.
)

// relationOf returns the relation of a Fleet Cluster to a Cluster. UIDs decide. Names decide only if no UID is known,
// and not for a Fleet Cluster that is older than the Cluster.
func (s *State) relationOf(in settings, fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) relation {
	owners, origins := clusterOwners(fleet), originUIDs(fleet)
	from := fleet.Annotations[importedFrom]
	switch {
	case slices.Contains(origins, cluster.UID):
		if !s.isRightful(fleet, cluster) {
			return foreign
		}
		return own
	case s.existsOf(fleet.Namespace, origins): // It is another Cluster's, whatever its annotations say.
		return foreign
	case fleet.Annotations[adopt] == "true":
		// Handed over, but not from under another Cluster that it was made from.
		if other := (Key{Namespace: fleet.Namespace, Name: from}); len(origins) == 0 && from != cluster.Name && s.Clusters[other] != nil {
			return foreign
		}
		return handed
	case !isOurs(fleet):
		return foreign
	case len(origins) > 0:
		named := func(owner metav1.OwnerReference) bool { return owner.Name == cluster.Name }
		switch {
		case from != cluster.Name && !slices.ContainsFunc(owners, named):
			return foreign
		case len(owners) > 0:
			return orphan
		}
		return heirloom
	case from != cluster.Name && (from != "" || fleet.Name != in.nameOf(cluster) && fleet.Name != cluster.Annotations[pinnedName]):
		return foreign
	case fleet.CreationTimestamp.Before(&cluster.CreationTimestamp):
		return heirloom
	}
	return own
}

// isRightful reports whether the Cluster has the Fleet Cluster if several existing Clusters own it. The Cluster
// that it was made from has it, or else the one with the smallest UID.
func (s *State) isRightful(fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	var living []metav1.OwnerReference
	for _, owner := range clusterOwners(fleet) {
		if other := s.Clusters[Key{Namespace: fleet.Namespace, Name: owner.Name}]; other != nil && other.UID == owner.UID {
			living = append(living, owner)
		}
	}
	if len(living) < 2 {
		return true
	}
	made := slices.IndexFunc(living, func(owner metav1.OwnerReference) bool { return owner.Name == fleet.Annotations[importedFrom] })
	if made < 0 {
		slices.SortFunc(living, func(a, b metav1.OwnerReference) int { return strings.Compare(string(a.UID), string(b.UID)) })
		made = 0
	}
	return living[made].UID == cluster.UID
}

// fleetClusterOf returns the Fleet Cluster that already belongs to the Cluster, or nil.
func (s *State) fleetClusterOf(in settings, cluster *clusterv1.Cluster) *fleetv1.Cluster {
	if known := s.preferred(in, cluster, s.hasOrigin(cluster)); known != nil {
		return known
	}
	if !isClaimed(cluster) {
		return s.preferred(in, cluster, s.isOwn(in, cluster))
	}
	pinned := s.FleetClusters[fleetKey(cluster)]
	// A Fleet Cluster that is handed over does not belong to the Cluster before Muster claims it.
	if pinned != nil && s.relationOf(in, pinned, cluster) == own {
		return pinned
	}
	return nil
}

// preferred returns one of the matching Fleet Clusters in the Cluster's namespace that are not being deleted: the
// one that the Cluster is pinned to, or else the one with the expected name, or else the oldest.
func (s *State) preferred(in settings, cluster *clusterv1.Cluster, is func(*fleetv1.Cluster) bool) *fleetv1.Cluster {
	var found []*fleetv1.Cluster
	for key, fleet := range s.FleetClusters {
		if key.Namespace == cluster.Namespace && fleet.DeletionTimestamp.IsZero() && is(fleet) {
			found = append(found, fleet)
		}
	}
	if len(found) == 0 {
		return nil
	}
	rank := func(fleet *fleetv1.Cluster) int {
		switch fleet.Name {
		case cluster.Annotations[pinnedName]:
			return 0
		case in.nameOf(cluster):
			return 1
		}
		return 2
	}
	return slices.MinFunc(found, func(a, b *fleetv1.Cluster) int {
		if rank(a) != rank(b) {
			return rank(a) - rank(b)
		}
		if rank(a) == 2 && !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// hasOrigin matches Fleet Clusters that name the Cluster's UID, unless another Cluster has more right to them.
func (s *State) hasOrigin(cluster *clusterv1.Cluster) func(*fleetv1.Cluster) bool {
	return func(fleet *fleetv1.Cluster) bool {
		return slices.Contains(originUIDs(fleet), cluster.UID) && s.isRightful(fleet, cluster)
	}
}

// isOwn matches Fleet Clusters that belong to the Cluster by UID or, if no UID is known, by name.
func (s *State) isOwn(in settings, cluster *clusterv1.Cluster) func(*fleetv1.Cluster) bool {
	return func(fleet *fleetv1.Cluster) bool { return s.relationOf(in, fleet, cluster) == own }
}

// clusterOwners returns the owner references to CAPI Clusters.
func clusterOwners(object client.Object) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(object.GetOwnerReferences()), func(owner metav1.OwnerReference) bool {
		return owner.Kind != "Cluster" || !strings.HasPrefix(owner.APIVersion, "cluster.x-k8s.io/")
	})
}

// originUIDs returns the UIDs of the Clusters that a Fleet Cluster was made from: those of its owners, or if it has
// none, the one in its annotation.
func originUIDs(fleet *fleetv1.Cluster) []types.UID {
	var uids []types.UID
	for _, owner := range clusterOwners(fleet) {
		uids = append(uids, owner.UID)
	}
	if noted := fleet.Annotations[importedUID]; len(uids) == 0 && noted != "" {
		uids = append(uids, types.UID(noted))
	}
	return uids
}

// existsOf reports whether one of the UIDs belongs to an existing Cluster in the namespace.
func (s *State) existsOf(namespace string, uids []types.UID) bool {
	for key, cluster := range s.Clusters {
		if key.Namespace == namespace && slices.Contains(uids, cluster.UID) {
			return true
		}
	}
	return false
}

// isOfLiving reports whether the Cluster that a Fleet Cluster was made from exists. A new Cluster of the same name
// is another one.
func (s *State) isOfLiving(in settings, fleet *fleetv1.Cluster) bool {
	for key, cluster := range s.Clusters {
		if key.Namespace == fleet.Namespace && (s.hasOrigin(cluster)(fleet) || s.isOwn(in, cluster)(fleet)) {
			return true
		}
	}
	return false
}

// claim writes on a Fleet Cluster whose it is now, even if Muster may change nothing else of it.
func (in settings) claim(fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) {
	for _, note := range []string{adopt, released} {
		delete(fleet.Annotations, note)
	}
	fleet.Annotations = set(fleet.Annotations, importedFrom, cluster.Name)
	if fleet.OwnerReferences = in.ownersOf(cluster); in.owners {
		unspare(fleet, cluster)
	} else {
		fleet.Annotations = spared(fleet.Annotations)
	}
	noteOrigin(fleet, cluster)
	fleet.ManagedFields = append(fleet.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager})
}

// noteOrigin records the Cluster's UID if no owner reference has it.
func noteOrigin(fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) {
	uid := string(cluster.UID)
	if isOwner(fleet, cluster.UID) {
		uid = ""
	}
	fleet.Annotations = set(fleet.Annotations, importedUID, uid)
}

func isOwner(object client.Object, uid types.UID) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(owner metav1.OwnerReference) bool { return owner.UID == uid })
}

func withoutOwner(object client.Object, uid types.UID) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(object.GetOwnerReferences()), func(owner metav1.OwnerReference) bool { return owner.UID == uid })
}
