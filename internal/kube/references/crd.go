package references

import (
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// CRD returns an empty CRD for reading metadata only.
func CRD() *metav1.PartialObjectMetadata {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return crd
}

// ContractNews passes events that can change whether and in which version a kind is read: a CRD is created, is
// deleted or changes its labels. It drops the CRDs found at startup, because nothing was read before.
var ContractNews = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) || e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
	},
}

// Indexes of CAPI Clusters by the objects to which they refer: control plane and infrastructure.
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

// ReferenceKey identifies a referenced object within a namespace.
func ReferenceKey(group, kind, name string) string { return kind + "." + group + "/" + name }
