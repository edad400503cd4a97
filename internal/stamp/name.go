package stamp

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/settings"
)

// hashLength is how many hex digits of a SHA-256 distinguish shortened names.
const hashLength = 8

// leastLeft is how many first characters of a Cluster's name show in a shortened name whose it is.
const leastLeft = 8

// FleetName returns the name of the Fleet Cluster for a CAPI Cluster: prefix + name + suffix. In
// Fleet, it becomes part of a Namespace's name and a label value, so it must be a DNS-1123 label. If
// it is not one, FleetName shortens it, and shortened is true.
func FleetName(cluster settings.Cluster, name string) (fleetName string, shortened bool) {
	full := cluster.Prefix + name + cluster.Suffix
	return Label(full, validation.DNS1123LabelMaxLength), !IsFleetName(full)
}

// IsFleetName reports whether Fleet can use the name for a Cluster.
func IsFleetName(name string) bool {
	return len(validation.IsDNS1123Label(name)) == 0
}

// isNameOf reports whether settings, today's or earlier ones, may give a Cluster this name in Fleet: it contains the
// Cluster's name or, if it is a shortened one, as much of it as was left.
func isNameOf(fleetName, cluster string) bool {
	readable := replace(cluster, isLowerAlphanumeric)
	if strings.Contains(fleetName, readable) {
		return true
	}
	cut := len(fleetName) - hashLength - len("-")
	if cut < 0 || fleetName[cut] != '-' || strings.Trim(fleetName[cut+1:], "0123456789abcdef") != "" {
		return false
	}
	for length := leastLeft; length <= len(readable); length++ {
		if strings.HasSuffix(fleetName[:cut], readable[:length]) {
			return true
		}
	}
	return false
}

// LabelValue returns the name as a label value, shortened if it does not fit.
func LabelValue(name string) (value string, shortened bool) {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name, false
	}
	return shorten(name, validation.LabelValueMaxLength, func(r rune) bool {
		return isLowerAlphanumeric(r) || 'A' <= r && r <= 'Z' || r == '.' || r == '_'
	}), true
}

// GroupName returns the name of the ClusterGroup for clusters whose class lives in
// another namespace: "<class>.<class namespace>".
func GroupName(class, classNamespace string) string {
	return Subdomain(class + "." + classNamespace)
}

// Label returns a name as a DNS-1123 label of at most limit characters. It shortens a name that is not
// one.
func Label(name string, limit int) string {
	if len(name) <= limit && IsFleetName(name) {
		return name
	}
	return shorten(name, limit, isLowerAlphanumeric)
}

// Subdomain returns a name as a DNS-1123 subdomain, shortened if it does not fit.
func Subdomain(name string) string {
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	return shorten(name, validation.DNS1123SubdomainMaxLength, func(r rune) bool { return isLowerAlphanumeric(r) || r == '.' })
}

// shorten returns a name of at most limit characters. Characters that are not allowed
// become '-', the end is cut off, and a hash keeps names apart.
func shorten(full string, limit int, allowed func(rune) bool) string {
	hash := hexOf(full)[:hashLength]
	readable := strings.TrimLeft(replace(full, allowed), "-._")
	readable = readable[:min(len(readable), limit-hashLength-1)]
	readable = strings.TrimRight(readable, "-._")
	if readable == "" {
		return hash
	}
	return readable + "-" + hash
}

// replace returns a name in which '-' stands for each character that is not allowed.
func replace(name string, allowed func(rune) bool) string {
	return strings.Map(func(r rune) rune {
		if allowed(r) {
			return r
		}
		return '-'
	}, name)
}

func isLowerAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || '0' <= r && r <= '9'
}

// WorkspaceGroupName returns the name of the ClusterGroup, in a workspace, for the Clusters of a
// namespace that use a class. The name is "<class>.<namespace>" if the class is in the Clusters'
// namespace. Otherwise, and if the name of the class has dots, the namespace of the class stands
// between the two.
func WorkspaceGroupName(class types.NamespacedName, origin string) string {
	if class.Namespace == origin && !strings.Contains(class.Name, ".") {
		return Subdomain(class.Name + "." + origin)
	}
	return Subdomain(class.Name + "." + class.Namespace + "." + origin)
}
