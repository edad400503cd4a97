// Package stamp owns the stamp: the labels and annotations on a CAPI Cluster that
// say which ClusterClass it is of, who claimed it for Fleet, and under which name.
// It is all that the webhook and the syncer share. The package is pure: it takes
// metadata and settings and returns values; it knows no API server and no
// admission request, so that both programs decide alike.
package stamp

// Keys of the stamp. The class keys, owned-by's domain and the legacy finalizer
// are those of CAAPF, whose objects are adopted in place.
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

	// AdoptAnnotation set to "true" on a Fleet object hands it to Muster.
	AdoptAnnotation = Domain + "/adopt"
	// LegacyFinalizer is the finalizer that CAAPF left on Clusters and ClusterClasses.
	LegacyFinalizer = Domain

	// Domain prefixes every key of ours.
	Domain = "fleet.addons.cluster.x-k8s.io"
)
