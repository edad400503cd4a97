package registrar

import (
	"maps"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/observed"
)

// trim is a cache transform: it keeps of an object what is read here, so that thousands of
// Clusters fit in little memory, and a change of anything else is none (see observed.News).
func trim(object any) (any, error) {
	accessor, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	managers := observed.Managers(accessor.GetManagedFields())
	accessor.SetManagedFields(nil)
	switch typed := object.(type) {
	case *clusterv1.Cluster:
		trimMetadata(typed)
		paused, class := typed.Spec.Paused, typed.Spec.Topology.ClassRef
		typed.Spec = clusterv1.ClusterSpec{Paused: paused, Topology: clusterv1.Topology{ClassRef: class}}
		typed.Status = clusterv1.ClusterStatus{Conditions: conditionsRead(typed.Status.Conditions)}
		typed.OwnerReferences = nil
	case *fleetv1.Cluster:
		trimFleetCluster(typed)
		typed.ManagedFields = managers // Whose it is may be told by nothing else.
	case *fleetv1.ClusterRegistration:
		trimMetadata(typed)
		keepManagedBy(typed)
		typed.OwnerReferences = stamp.BoundedOwners(typed)
		typed.Spec.ClusterLabels = nil
	case *fleetv1.Bundle:
		trimBundle(typed)
	case *metav1.PartialObjectMetadata: // a Namespace
		maps.DeleteFunc(typed.Annotations, func(key, _ string) bool {
			return key != fleetv1.ClusterNamespaceAnnotation && key != fleetv1.ClusterAnnotation
		})
	}
	return object, nil
}

// trimMetadata drops what nobody reads of any object. Generation counts changes of which
// most are dropped.
func trimMetadata(object client.Object) {
	object.SetFinalizers(nil)
	object.SetGeneration(0)
	annotations := object.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool { return !stamp.IsKey(key) && key != clusterv1.PausedAnnotation })
	object.SetAnnotations(annotations)
}

func keepManagedBy(object client.Object) {
	labels := object.GetLabels()
	maps.DeleteFunc(labels, func(key, _ string) bool { return key != stamp.ManagedByLabel })
	object.SetLabels(labels)
}

func conditionsRead(all []metav1.Condition) []metav1.Condition {
	for _, condition := range all {
		if condition.Type == stamp.ManifestCondition {
			return []metav1.Condition{condition}
		}
	}
	return nil
}

func trimFleetCluster(cluster *fleetv1.Cluster) {
	generation := cluster.Generation
	trimMetadata(cluster)
	keepManagedBy(cluster)
	cluster.Generation = min(generation, changed)
	cluster.OwnerReferences = stamp.BoundedOwners(cluster)
	cluster.Spec = fleetv1.ClusterSpec{
		ClientID: cluster.Spec.ClientID, KubeConfigSecret: cluster.Spec.KubeConfigSecret, AgentNamespace: cluster.Spec.AgentNamespace,
	}
	status := fleetv1.ClusterStatus{Namespace: cluster.Status.Namespace}
	if !cluster.Status.Agent.LastSeen.IsZero() {
		status.Agent.LastSeen = cluster.CreationTimestamp // That it has called is read, not when.
	}
	cluster.Status = status
}

// trimBundle keeps of Fleet's Bundle for a cluster the agent in it.
func trimBundle(bundle *fleetv1.Bundle) {
	trimMetadata(bundle)
	bundle.Labels, bundle.Status = nil, fleetv1.BundleStatus{}
	spec := fleetv1.BundleSpec{}
	for _, target := range bundle.Spec.Targets {
		if target.ClusterName != "" && bundle.Name == stamp.AgentBundle(target.ClusterName) {
			spec.Targets = []fleetv1.BundleTarget{{ClusterName: target.ClusterName}}
			spec.Resources = []fleetv1.BundleResource{{Name: agentResource, Content: agentOf(bundle)}}
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
