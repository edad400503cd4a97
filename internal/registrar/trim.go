package registrar

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/stamp"
)

// maxAgent is the maximum size of an agent's manifest in Fleet's Bundle, in bytes. Fleet's own has 7 KiB. Without
// a limit, a tenant with Bundles in one namespace could fill the cache.
const maxAgent = 128 << 10

// trim is a cache transform: it keeps the fields that the registrar reads, and bounds each, so that
// thousands of Clusters fit in little memory, and a change of any other field causes no reconcile (see
// kube.News). Its input may be trimmed already.
func trim(object any) (any, error) {
	accessor, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	isManager := stamp.IsManager(accessor)
	accessor.SetManagedFields(nil)
	switch typed := object.(type) {
	case *clusterv1.Cluster:
		rotation := typed.Annotations[stamp.RotateAnnotation]
		trimMetadata(typed, stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation, stamp.RegistrationAnnotation, stamp.RotateAnnotation, clusterv1.PausedAnnotation)
		if len(rotation) > bounds.MaxName { // Two long values may have the same beginning.
			typed.Annotations[stamp.RotateAnnotation] = digest(rotation)
		}
		paused, class := typed.Spec.Paused, typed.Spec.Topology.ClassRef
		typed.Spec = clusterv1.ClusterSpec{Paused: paused, Topology: clusterv1.Topology{ClassRef: class}}
		ready := meta.FindStatusCondition(typed.Status.Conditions, addonsv1.FleetAgentManifestReadyCondition)
		typed.Status = clusterv1.ClusterStatus{}
		if ready != nil {
			typed.Status.Conditions = []metav1.Condition{*ready}
		}
		typed.OwnerReferences = nil
	case *fleetv1.Cluster:
		trimFleetCluster(typed)
		if isManager { // The field manager is the only proof of who created the object.
			typed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager}}
		}
	case *fleetv1.ClusterRegistration:
		trimMetadata(typed)
		typed.Labels = bounds.Names(typed.Labels, stamp.ManagedByLabel)
		typed.OwnerReferences = stamp.BoundedOwners(typed)
		typed.Spec = fleetv1.ClusterRegistrationSpec{ClientID: bounds.Name(typed.Spec.ClientID), ClientRandom: bounds.Name(typed.Spec.ClientRandom)}
		typed.Status = fleetv1.ClusterRegistrationStatus{ClusterName: bounds.Name(typed.Status.ClusterName), Granted: typed.Status.Granted}
	case *fleetv1.Bundle:
		trimBundle(typed)
	case *metav1.PartialObjectMetadata: // a Namespace
		typed.Annotations = bounds.Names(typed.Annotations, fleetv1.ClusterNamespaceAnnotation, fleetv1.ClusterAnnotation)
	}
	return object, nil
}

// trimMetadata drops finalizers, the generation, which also counts changes of dropped fields, and all
// annotations except the given keys.
func trimMetadata(object client.Object, read ...string) {
	object.SetFinalizers(nil)
	object.SetGeneration(0)
	object.SetAnnotations(bounds.Names(object.GetAnnotations(), read...))
}

func trimFleetCluster(cluster *fleetv1.Cluster) {
	generation := cluster.Generation
	trimMetadata(cluster, stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation, stamp.AdoptAnnotation)
	cluster.SetLabels(bounds.Names(cluster.GetLabels(), stamp.ManagedByLabel, stamp.RancherClusterLabel))
	cluster.Generation = min(generation, changed)
	cluster.OwnerReferences = stamp.BoundedOwners(cluster)
	cluster.Spec = fleetv1.ClusterSpec{
		ClientID:         bounds.Name(cluster.Spec.ClientID),
		KubeConfigSecret: bounds.Name(cluster.Spec.KubeConfigSecret),
		AgentNamespace:   bounds.Name(cluster.Spec.AgentNamespace),
	}
	status := fleetv1.ClusterStatus{Namespace: bounds.Name(cluster.Status.Namespace)}
	if !cluster.Status.Agent.LastSeen.IsZero() {
		status.Agent.LastSeen = cluster.CreationTimestamp // Only whether the agent has checked in matters, not when.
	}
	cluster.Status = status
}

// trimBundle keeps only the agent in Fleet's Bundle for a cluster; one that is too large is cut one
// byte above the bound.
func trimBundle(bundle *fleetv1.Bundle) {
	trimMetadata(bundle)
	bundle.Labels, bundle.OwnerReferences, bundle.Status = nil, nil, fleetv1.BundleStatus{}
	spec := fleetv1.BundleSpec{}
	for _, target := range bundle.Spec.Targets {
		if target.ClusterName != "" && len(target.ClusterName) <= bounds.MaxName && bundle.Name == stamp.AgentBundle(target.ClusterName) {
			spec.Targets = []fleetv1.BundleTarget{{ClusterName: target.ClusterName}}
			spec.Resources = []fleetv1.BundleResource{{Name: agentResource, Content: bounds.Cut(agentOf(bundle), maxAgent+1)}}
		}
	}
	bundle.Spec = spec
}

func agentOf(bundle *fleetv1.Bundle) string {
	for _, resource := range bundle.Spec.Resources {
		if resource.Name == agentResource && resource.Encoding == "" {
			return resource.Content
		}
	}
	return ""
}
