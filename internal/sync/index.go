package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// Indexes, so that "who uses it now?" does not walk through all clusters.
const (
	byClass          = "muster.class"          // "<class namespace>/<class name>" of a Cluster's topology
	byClassNamespace = "muster.classNamespace" // class namespace that a claimed Cluster, or a Fleet Cluster of ours, uses from another namespace
	byGroup          = "muster.group"          // name of the cross-namespace ClusterGroup it uses
	byUnclaimed      = "muster.unclaimed"      // "true" for a Cluster that is not claimed
	byPin            = "muster.pin"            // name of the Fleet Cluster it is pinned to
	byClaim          = "muster.claim"          // "true" for a claimed Cluster
	byOrigin         = "muster.origin"         // the CAPI Cluster a Fleet Cluster was made from: originName and originUID
	byReference      = "muster.reference"      // "<kind>.<group>/<name>" of control plane and infrastructure
)

// useOf says which class of another namespace a claimed Cluster uses; zero for none.
func useOf(cluster *clusterv1.Cluster) types.NamespacedName {
	if !stamp.PinOf(cluster.Annotations).IsComplete() {
		return types.NamespacedName{}
	}
	return wishOf(cluster)
}

// wishOf says which class of another namespace a Cluster names, claimed or not.
func wishOf(cluster *clusterv1.Cluster) types.NamespacedName {
	return crossNamespace(cluster.Namespace, cluster.GetClassKey())
}

// useOfFleet says which class of another namespace a Fleet Cluster of ours is
// grouped by. It differs from its Cluster's use while a rebase is under way and
// while the Cluster is paused: what Fleet deploys follows the Fleet Cluster.
func useOfFleet(cluster *fleetv1.Cluster) types.NamespacedName {
	if cluster.Labels[desired.ManagedByLabel] != desired.ManagedBy {
		return types.NamespacedName{}
	}
	class := types.NamespacedName{
		Namespace: cluster.Labels[stamp.ClassNamespaceLabel],
		Name:      cluster.Labels[stamp.ClassNameLabel],
	}
	if full := cluster.Annotations[desired.ClassAnnotation]; full != "" {
		class.Name = full
	}
	return crossNamespace(cluster.Namespace, class)
}

func crossNamespace(namespace string, class types.NamespacedName) types.NamespacedName {
	if class.Name == "" || class.Namespace == "" || class.Namespace == namespace {
		return types.NamespacedName{}
	}
	return class
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		values client.IndexerFunc
	}{
		{&clusterv1.Cluster{}, byClass, func(o client.Object) []string {
			return nonEmpty(o.(*clusterv1.Cluster).GetClassKey().String())
		}},
		{&clusterv1.Cluster{}, byClassNamespace, func(o client.Object) []string {
			return nonEmpty(useOf(o.(*clusterv1.Cluster)).Namespace)
		}},
		{&clusterv1.Cluster{}, byGroup, func(o client.Object) []string {
			return groupNameOf(useOf(o.(*clusterv1.Cluster)))
		}},
		{&clusterv1.Cluster{}, byPin, func(o client.Object) []string {
			return nonEmpty(stamp.PinOf(o.GetAnnotations()).ClusterName)
		}},
		{&clusterv1.Cluster{}, byClaim, func(o client.Object) []string {
			return trueIf(stamp.PinOf(o.GetAnnotations()).IsComplete())
		}},
		{&clusterv1.Cluster{}, byUnclaimed, func(o client.Object) []string {
			return trueIf(!stamp.PinOf(o.GetAnnotations()).IsComplete())
		}},
		{&fleetv1.Cluster{}, byOrigin, func(o client.Object) []string { return origins(o.(*fleetv1.Cluster)) }},
		{&clusterv1.Cluster{}, byReference, func(o client.Object) []string {
			return references(o.(*clusterv1.Cluster))
		}},
		{&fleetv1.Cluster{}, byClassNamespace, func(o client.Object) []string {
			return nonEmpty(useOfFleet(o.(*fleetv1.Cluster)).Namespace)
		}},
		{&fleetv1.Cluster{}, byGroup, func(o client.Object) []string {
			return groupNameOf(useOfFleet(o.(*fleetv1.Cluster)))
		}},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("adding index %s: %w", index.name, err)
		}
	}
	return nil
}

func groupNameOf(class types.NamespacedName) []string {
	if class.Name == "" {
		return nil
	}
	return []string{stamp.GroupName(class.Name, class.Namespace)}
}

// origins returns by what a Fleet Cluster can be found from its CAPI Cluster.
func origins(cluster *fleetv1.Cluster) []string {
	var result []string
	if name := cluster.Annotations[desired.ImportedFromAnnotation]; name != "" {
		result = append(result, originName(name))
	}
	for _, owner := range cluster.OwnerReferences {
		result = append(result, originUID(owner.UID))
	}
	return result
}

func originName(name string) string  { return "name/" + name }
func originUID(uid types.UID) string { return "uid/" + string(uid) }

func references(cluster *clusterv1.Cluster) []string {
	var keys []string
	for _, ref := range []clusterv1.ContractVersionedObjectReference{cluster.Spec.ControlPlaneRef, cluster.Spec.InfrastructureRef} {
		if ref.IsDefined() {
			keys = append(keys, referenceKey(ref.APIGroup, ref.Kind, ref.Name))
		}
	}
	return keys
}

func referenceKey(group, kind, name string) string { return kind + "." + group + "/" + name }

func trueIf(holds bool) []string {
	if holds {
		return []string{"true"}
	}
	return nil
}

func nonEmpty(value string) []string {
	if value == "" || value == "/" {
		return nil
	}
	return []string{value}
}
