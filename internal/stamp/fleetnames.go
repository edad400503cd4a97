package stamp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FleetNamespace returns the name of the namespace that Fleet keeps for a Fleet Cluster.
func FleetNamespace(namespace, fleetCluster string) string {
	const hashed = 100 // bytes, of what Fleet hashes
	key := namespace + "::" + fleetCluster
	return fleetName("cluster", namespace, fleetCluster, hexOf(key[:min(hashed, len(key))])[:12])
}

// CanShareFleetNamespace reports whether another Fleet Cluster may get the same namespace as a Fleet
// Cluster: if the two names have more than 41 characters together, Fleet cuts them, and puts 5 or 6
// hex digits in place of the rest. A user who chooses the end of a name finds a second name with the
// same namespace within a second.
func CanShareFleetNamespace(namespace, fleetCluster string) bool {
	return len(namespace)+len(fleetCluster) > longestUncut
}

// longestUncut is the length that Fleet's longest name leaves for the two names in
// "cluster-<namespace>-<name>-<12 hex digits>".
const longestUncut = longestFleetName - len("cluster-") - len("-") - len("-") - 12

// FleetClaim is a Fleet Cluster, or a Cluster that will become one.
type FleetClaim struct {
	types.NamespacedName
	// Since is when the Fleet Cluster was created; zero if it does not exist yet.
	Since time.Time
}

// compare returns a negative number if the first claim is the older one. A claim without a Fleet
// Cluster comes last.
func (c FleetClaim) compare(other FleetClaim) int {
	switch {
	case c.Since.IsZero() != other.Since.IsZero():
		return -c.Since.Compare(other.Since)
	case !c.Since.Equal(other.Since):
		return c.Since.Compare(other.Since)
	default:
		return strings.Compare(c.String(), other.String())
	}
}

// OtherHolder returns the Fleet Cluster that holds the namespace that Fleet derives for another one,
// self; zero if self may have it. Claims are all the claims to that namespace. Annotations are the
// annotations of the Namespace, if it exists.
//
// Fleet itself gives the namespace to all of them. A user who may name one of them could then read the
// deployments of another one through its agent, and would delete the namespace with it. So the first
// one keeps it: the one that Fleet made the Namespace for, or else the oldest. A Fleet Cluster that a
// user made by hand counts as well, because Fleet treats it alike.
//
// Setting status.namespace to another name in advance does not help: when a Fleet Cluster is deleted,
// Fleet removes the derived namespace only, and the other would stay.
func OtherHolder(self types.NamespacedName, annotations map[string]string, claims []FleetClaim) types.NamespacedName {
	holder := types.NamespacedName{Namespace: annotations[fleetv1.ClusterNamespaceAnnotation], Name: annotations[fleetv1.ClusterAnnotation]}
	if !IsFleetNamespace(annotations) {
		if len(claims) == 0 {
			return types.NamespacedName{}
		}
		holder = slices.MinFunc(claims, FleetClaim.compare).NamespacedName
	}
	if holder == self {
		return types.NamespacedName{}
	}
	return holder
}

// IsFleetNamespace reports whether the annotations of a Namespace say for which Fleet Cluster
// Fleet made it.
func IsFleetNamespace(annotations map[string]string) bool {
	return annotations[fleetv1.ClusterNamespaceAnnotation] != "" && annotations[fleetv1.ClusterAnnotation] != ""
}

// SharedFleetNamespace returns a message: another Fleet Cluster has the namespace of this one, and how
// to avoid that. It does not name the other one, because tenants read it.
func SharedFleetNamespace(namespace, fleetCluster, cluster string) string {
	const suffix = "-2"
	another := cluster[:min(len(cluster), validation.DNS1123LabelMaxLength-len(suffix))] + suffix
	return fmt.Sprintf("Fleet would give it Namespace %q, which belongs to a Fleet Cluster of another name or namespace; name this Cluster differently, for example %q (namespace and name of at most %d characters together never share a Namespace)",
		FleetNamespace(namespace, fleetCluster), another, longestUncut)
}

// AgentBundle returns the name of Fleet's own Bundle with the agent of a Fleet Cluster.
func AgentBundle(fleetCluster string) string { return fleetName("fleet-agent", fleetCluster) }

const longestFleetName = 63

// fleetName joins and cuts names as Fleet does.
func fleetName(parts ...string) string {
	name := strings.Join(parts, "-")
	if len(name) <= longestFleetName {
		return name
	}
	digest := hexOf(name)
	if c := name[56]; 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
		return name[:57] + "-" + digest[:5]
	}
	return name[:56] + "-" + digest[:6]
}

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
