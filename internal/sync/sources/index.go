package sources

import (
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Indexes of CAPI Clusters by what they refer to: control plane and infrastructure.
const (
	ByReference = "muster.reference"     // ReferenceKey
	ByKind      = "muster.referenceKind" // name of the CRD
)

// References returns the values of ByReference.
func References(cluster client.Object) []string {
	return ofReferences(cluster, func(ref clusterv1.ContractVersionedObjectReference) string {
		return ReferenceKey(ref.APIGroup, ref.Kind, ref.Name)
	})
}

// Kinds returns the values of ByKind.
func Kinds(cluster client.Object) []string {
	return ofReferences(cluster, func(ref clusterv1.ContractVersionedObjectReference) string {
		return contract.CalculateCRDName(ref.APIGroup, ref.Kind)
	})
}

func ofReferences(object client.Object, key func(clusterv1.ContractVersionedObjectReference) string) []string {
	var keys []string
	for _, ref := range referencesOf(object.(*clusterv1.Cluster)) {
		keys = append(keys, key(ref))
	}
	return keys
}

// referencesOf returns the references of a Cluster.
func referencesOf(cluster *clusterv1.Cluster) []clusterv1.ContractVersionedObjectReference {
	return slices.DeleteFunc([]clusterv1.ContractVersionedObjectReference{cluster.Spec.ControlPlaneRef, cluster.Spec.InfrastructureRef},
		func(ref clusterv1.ContractVersionedObjectReference) bool { return !ref.IsDefined() })
}

// ReferenceKey tells referenced objects of a namespace apart.
func ReferenceKey(group, kind, name string) string { return kind + "." + group + "/" + name }
