package oracle

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// FleetNamespace returns the namespace that Fleet keeps for a Fleet Cluster.
func FleetNamespace(fleet Key) string {
	sum := sha256.Sum256([]byte(fleet.Namespace + "::" + fleet.Name))
	return joined("cluster", fleet.Namespace, fleet.Name, hex.EncodeToString(sum[:])[:12])
}

// AgentBundle names Fleet's own Bundle with the agent of a Fleet Cluster.
func AgentBundle(fleet Key) Key {
	return Key{Namespace: fleet.Namespace, Name: joined("fleet-agent", fleet.Name)}
}

// joined joins names as Fleet does. It cuts names longer than 63 characters after 57, or after
// 56 if the 57th is not a letter or digit, and appends a dash and part of a digest.
func joined(parts ...string) string {
	name := strings.Join(parts, "-")
	if len(name) < 64 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	keep := 57
	if last := name[56]; last == '-' || last == '.' {
		keep = 56
	}
	return (name[:keep] + "-" + hex.EncodeToString(sum[:]))[:63]
}

// playNamespaces plays Fleet: the Fleet Clusters that it imports, those whose status names one, and those whose agents have
// reported, have a namespace, and it goes with the Fleet Cluster. Until they have it, they are not imported.
func (s *State) playNamespaces() {
	for name, holder := range s.FleetNamespaces {
		if s.FleetClusters[holder] == nil && !s.GarbageRemains {
			delete(s.FleetNamespaces, name)
		}
	}
	for key, fleet := range s.FleetClusters {
		isSeen := !fleet.Status.Agent.LastSeen.IsZero() || s.AgentInitiated.CheckedIn[fleet.UID]
		if !fleet.DeletionTimestamp.IsZero() || fleet.Spec.KubeConfigSecret == "" && fleet.Status.Namespace == "" && !isSeen {
			continue
		}
		if fleet.Status.Namespace == "" {
			fleet.Status.Namespace = FleetNamespace(key)
		}
		s.FleetNamespaces[FleetNamespace(key)] = s.Holder(key)
	}
}

// Holder returns the Fleet Cluster that may use the namespace that Fleet derives for the given
// one: the one in the Namespace's annotations, or else the oldest. A Fleet Cluster that does not
// exist yet comes last.
func (s *State) Holder(fleet Key) Key {
	shared := FleetNamespace(fleet)
	if holder, made := s.FleetNamespaces[shared]; made {
		return holder
	}
	holder := fleet
	var first *fleetv1.Cluster
	for key, other := range s.FleetClusters {
		if FleetNamespace(key) == shared && (first == nil || isOlder(other, first)) {
			holder, first = key, other
		}
	}
	return holder
}

// isOlder reports whether a was created before b. If both have the same second, the name decides.
func isOlder(a, b *fleetv1.Cluster) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return Key{Namespace: a.Namespace, Name: a.Name}.String() < Key{Namespace: b.Namespace, Name: b.Name}.String()
	}
	return b.CreationTimestamp.IsZero() || !a.CreationTimestamp.IsZero() && a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// IsTaken reports whether the webhook refuses a new Cluster because the namespace that Fleet would give it belongs
// to another Fleet Cluster, or to the Fleet Cluster that another Cluster is pinned to.
func IsTaken(s State, requested *clusterv1.Cluster) bool {
	admitted := Admitted(s, requested)
	if !isClaimed(admitted) {
		return false
	}
	wanted := fleetKey(admitted)
	holder := s.Holder(wanted)
	_, isMade := s.FleetNamespaces[FleetNamespace(wanted)]
	if isMade || holder != wanted || s.FleetClusters[wanted] != nil {
		return holder != wanted
	}
	return s.isRivalled(wanted, func(*clusterv1.Cluster) bool { return true })
}

// isPromised reports whether a Cluster without a pin would get a name whose namespace in Fleet belongs to another
// Fleet Cluster, or will: a selected Cluster is pinned to that one.
func (s *State) isPromised(in settings, cluster *clusterv1.Cluster) bool {
	planned := cluster.DeepCopy()
	s.claim(in, planned)
	wanted := fleetKey(planned)
	return s.Holder(wanted) != wanted || s.isRivalled(wanted, func(other *clusterv1.Cluster) bool {
		return other != cluster && other.DeletionTimestamp.IsZero() && in.selects(other, s.Namespaces[other.Namespace])
	})
}

// isRivalled reports whether one of the counted Clusters is pinned to another name with the same namespace in
// Fleet.
func (s *State) isRivalled(wanted Key, counts func(*clusterv1.Cluster) bool) bool {
	for _, other := range s.Clusters {
		if key := fleetKey(other); isClaimed(other) && counts(other) && key != wanted && FleetNamespace(key) == FleetNamespace(wanted) {
			return true
		}
	}
	return false
}

// reasonsOfShared returns the reasons for a Cluster whose namespace in Fleet belongs to another. While such a
// Cluster also waits for something else, Muster may report that instead.
func (s *State) reasonsOfShared(in settings, cluster *clusterv1.Cluster) string {
	reasons := "NameConflict"
	if !in.mayBeMade(cluster) {
		reasons += orElse + "WaitingForControlPlane"
	}
	if _, resolved := s.templateValues(in, cluster); !resolved {
		reasons += orElse + "TemplateValuesUnresolved"
	}
	return reasons
}
