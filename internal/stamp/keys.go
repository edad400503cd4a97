// Package stamp owns the stamp: the labels and annotations on a CAPI Cluster that say which
// ClusterClass it uses, what claimed it for Fleet, and under which name. The stamp is all
// that the webhook and the syncer share. The package is pure: it takes metadata and settings
// and returns values; it knows no API server and no admission request, so that all programs
// decide alike.
package stamp

import "strings"

// Keys of the stamp. The class keys and the domain of owned-by come from CAAPF,
// whose objects Muster adopts in place.
const (
	// ClassNameLabel holds the name of the Cluster's class, shortened if it does not fit a label value.
	ClassNameLabel = "clusterclass-name." + Domain
	// ClassNamespaceLabel holds the namespace of the Cluster's class.
	ClassNamespaceLabel = "clusterclass-namespace." + Domain
	// ClassFullNameAnnotation holds the class name where the label holds a shortened one.
	ClassFullNameAnnotation = Domain + "/clusterclass-name"
	// OwnedByAnnotation holds the name of the FleetAddonConfig that claimed the Cluster.
	OwnedByAnnotation = Domain + "/owned-by"
	// ClusterNameAnnotation pins the name of the Cluster's Fleet Cluster.
	ClusterNameAnnotation = Domain + "/cluster-name"

	// HoldAnnotation on a Cluster or ClusterClass asks Muster to hold upgrades, for at most this duration,
	// until the add-ons for the new version are ready.
	HoldAnnotation = Domain + "/hold-upgrade"
	// ClassHoldAnnotation on a Cluster holds the HoldAnnotation of its ClusterClass.
	ClassHoldAnnotation = Domain + "/hold-upgrade-of-class"
	// HookAnnotation on a Cluster is the hold itself: Cluster API starts no upgrade while a key with this
	// prefix is there. Keys of others are none of Muster's business.
	HookAnnotation = "before-upgrade.hook.cluster.cluster.x-k8s.io/muster"

	// AdoptAnnotation set to "true" on a Fleet object hands it to Muster.
	AdoptAnnotation = Domain + "/adopt"
	// ImportedFromAnnotation on a Fleet Cluster holds the name of the CAPI Cluster that it was made
	// from.
	ImportedFromAnnotation = Domain + "/imported-from"
	// ImportedUIDAnnotation holds the UID of that Cluster on a Fleet Cluster without an
	// owner reference. It distinguishes a Cluster that is recreated under the same name.
	ImportedUIDAnnotation = Domain + "/imported-uid"
	// ReleasedAnnotation is on a Fleet Cluster whose owner reference was removed while its
	// Cluster is paused. A Fleet Cluster that clusterctl move leaves behind keeps it.
	ReleasedAnnotation = Domain + "/released"

	// RancherClusterLabel on Rancher's Fleet Cluster holds the name of its management Cluster.
	RancherClusterLabel = "management.cattle.io/cluster-name"
	// OriginNamespaceLabel on Rancher's Fleet Cluster holds the namespace of the CAPI Cluster that is
	// attached to it. One workspace holds the Fleet Clusters of many namespaces.
	OriginNamespaceLabel = "cluster-namespace." + Domain
	// AttachedAnnotation on Rancher's Fleet Cluster holds namespace and name of that CAPI Cluster.
	AttachedAnnotation = Domain + "/attached"
	// AttachedUIDAnnotation holds its UID.
	AttachedUIDAnnotation = Domain + "/attached-uid"

	// ManagedByLabel is on every object that Muster makes.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of that label.
	ManagedBy = "muster"
	// FieldManager is the field manager of every write: the one of CAAPF, so that Muster adopts its
	// objects in place.
	FieldManager = "addon-provider-fleet"

	// Domain prefixes every key of ours.
	Domain = "fleet.addons.cluster.x-k8s.io"
)

// IsKey reports whether a label or annotation key is one of Muster's own.
func IsKey(key string) bool {
	if strings.HasPrefix(key, Domain+"/") {
		return true
	}
	name, found := strings.CutSuffix(key, Domain)
	return found && strings.HasSuffix(name, ".")
}
