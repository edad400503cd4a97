package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// Indexes, so that "who uses it now?" does not walk through all clusters.
const (
	byClass          = "muster.class"          // "<class namespace>/<class name>" of a Cluster's topology
	byClassNamespace = "muster.classNamespace" // class namespace that a Cluster, or a Fleet Cluster of ours, uses from another namespace
	byGroup          = "muster.group"          // name of the cross-namespace ClusterGroup it uses
	byPin            = "muster.pin"            // name of the Fleet Cluster it is pinned to
	byUID            = "muster.uid"            // UID of a Cluster
	byOrigin         = "muster.origin"         // the CAPI Cluster a Fleet Cluster was made from: originName and originUID
	byReleased       = "muster.released"       // "true" for a released Fleet Cluster
	byReference      = "muster.reference"      // "<kind>.<group>/<name>" of control plane and infrastructure
	byReferenceKind  = "muster.referenceKind"  // name of the CRD of control plane and infrastructure
)

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
			return nonEmpty(useOf(o.(*clusterv1.Cluster)).class.Namespace)
		}},
		{&clusterv1.Cluster{}, byGroup, func(o client.Object) []string {
			return groupName(useOf(o.(*clusterv1.Cluster)))
		}},
		{&clusterv1.Cluster{}, byPin, func(o client.Object) []string {
			return nonEmpty(stamp.PinOf(o.GetAnnotations()).ClusterName)
		}},
		{&clusterv1.Cluster{}, byUID, func(o client.Object) []string { return nonEmpty(string(o.GetUID())) }},
		{&clusterv1.Cluster{}, byReference, func(o client.Object) []string {
			return references(o.(*clusterv1.Cluster))
		}},
		{&fleetv1.Cluster{}, byOrigin, func(o client.Object) []string { return origins(o) }},
		{&fleetv1.Cluster{}, byReleased, func(o client.Object) []string {
			return trueIf(o.GetAnnotations()[stamp.ReleasedAnnotation] == "true")
		}},
		{&clusterv1.Cluster{}, byReferenceKind, func(o client.Object) []string {
			return referenceKinds(o.(*clusterv1.Cluster))
		}},
		{&fleetv1.Cluster{}, byClassNamespace, func(o client.Object) []string {
			return nonEmpty(useOfFleet(o.(*fleetv1.Cluster)).class.Namespace)
		}},
		{&fleetv1.Cluster{}, byGroup, func(o client.Object) []string {
			return groupName(useOfFleet(o.(*fleetv1.Cluster)))
		}},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("adding index %s: %w", index.name, err)
		}
	}
	return nil
}

func groupName(used use) []string {
	if used.isZero() {
		return nil
	}
	return []string{used.group().Name}
}

// origins returns by what a Fleet Cluster can be found from its CAPI Cluster.
func origins(cluster client.Object) []string {
	var result []string
	if name := cluster.GetAnnotations()[stamp.ImportedFromAnnotation]; name != "" {
		result = append(result, originName(name))
	}
	for _, owner := range cluster.GetOwnerReferences() {
		result = append(result, originUID(owner.UID))
		if stamp.IsCluster(owner) && owner.Name != cluster.GetAnnotations()[stamp.ImportedFromAnnotation] {
			result = append(result, originName(owner.Name))
		}
	}
	if uid := cluster.GetAnnotations()[stamp.ImportedUIDAnnotation]; uid != "" {
		result = append(result, originUID(types.UID(uid)))
	}
	return result
}

func originName(name string) string  { return "name/" + name }
func originUID(uid types.UID) string { return "uid/" + string(uid) }

func references(cluster *clusterv1.Cluster) []string {
	return ofReferences(cluster, func(ref clusterv1.ContractVersionedObjectReference) string {
		return referenceKey(ref.APIGroup, ref.Kind, ref.Name)
	})
}

func referenceKinds(cluster *clusterv1.Cluster) []string {
	return ofReferences(cluster, func(ref clusterv1.ContractVersionedObjectReference) string {
		return contract.CalculateCRDName(ref.APIGroup, ref.Kind)
	})
}

// ofReferences returns a key of each object that a Cluster refers to.
func ofReferences(cluster *clusterv1.Cluster, key func(clusterv1.ContractVersionedObjectReference) string) []string {
	var keys []string
	for _, ref := range []clusterv1.ContractVersionedObjectReference{cluster.Spec.ControlPlaneRef, cluster.Spec.InfrastructureRef} {
		if ref.IsDefined() {
			keys = append(keys, key(ref))
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
