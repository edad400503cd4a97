package sync

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/stamp"
)

// use says that Clusters of a namespace use a class of another. A ClusterGroup and a
// BundleNamespaceMapping are made for it.
type use struct {
	namespace string
	class     types.NamespacedName
}

// group returns the key of the ClusterGroup, beside the Clusters, that a use needs; zero for no use.
func (u use) group() types.NamespacedName {
	if u.isZero() {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: u.namespace, Name: stamp.GroupName(u.class.Name, u.class.Namespace)}
}

// mapping returns the key of the BundleNamespaceMapping, beside the class, that a use needs.
func (u use) mapping() types.NamespacedName {
	return types.NamespacedName{Namespace: u.class.Namespace, Name: u.namespace}
}

// isZero reports whether nothing of another namespace is used.
func (u use) isZero() bool { return u == use{} }

// useOf says which class of another namespace a Cluster names in its topology. Whether
// anything is made for it depends on whether the Cluster is selected, and claimed.
func useOf(cluster *clusterv1.Cluster) use {
	return crossNamespace(cluster.Namespace, cluster.GetClassKey())
}

// useOfFleet says which class of another namespace a Fleet Cluster of ours is grouped
// by. It differs from its Cluster's use while a rebase is under way and while the Cluster
// is frozen: what Fleet deploys follows the Fleet Cluster.
//
// Its labels prove nothing, as tenants may write them: they keep what is there, and make
// nothing.
func useOfFleet(cluster *fleetv1.Cluster) use {
	if !stamp.IsOurs(cluster) {
		return use{}
	}
	class := types.NamespacedName{
		Namespace: cluster.Labels[stamp.ClassNamespaceLabel],
		Name:      cluster.Labels[stamp.ClassNameLabel],
	}
	if full := cluster.Annotations[stamp.ClassFullNameAnnotation]; full != "" {
		class.Name = full
	}
	return crossNamespace(cluster.Namespace, class)
}

func crossNamespace(namespace string, class types.NamespacedName) use {
	if class.Name == "" || class.Namespace == "" || class.Namespace == namespace {
		return use{}
	}
	return use{namespace, class}
}
