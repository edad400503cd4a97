// Package desired computes the desired state of Fleet's objects. Each function is pure: it reads only
// CAPI objects and settings, and the same input gives the same Fleet object. Package kube compares the
// result with the existing object and writes it; package sync decides when, and in which order.
package desired

import (
	"maps"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// FleetCluster returns the Fleet Cluster of a stamped CAPI Cluster. It has the labels of the Cluster
// and of its class, so that bundles can be targeted by either; if both have a key, the Cluster's value
// wins. Values are the template values (see Values), nil for none. Targets are noted on the Fleet
// Cluster, so that it changes with them. ClientID is the ID that an agent that registers itself
// registers with. If it is empty, Fleet installs the agent through the Cluster's kubeconfig. If there is TooMuch
// to copy, the result is the part that is not copied, without values.
//
// FleetCluster does not set the fields that Fleet itself writes (spec.clientID of an agent that it
// installs, spec.agentSchedulingCustomization).
func FleetCluster(in settings.Settings, cluster *clusterv1.Cluster, class *Class, values map[string]any, targets Targets, clientID string) *fleetv1.Cluster {
	labels, annotations, isWhole := metadataOf(in, cluster, class, targets)
	labels[stamp.ManagedByLabel] = stamp.ManagedBy
	annotations[stamp.ImportedFromAnnotation] = cluster.Name

	fleetCluster := &fleetv1.Cluster{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   cluster.Namespace,
			Name:        stamp.PinOf(cluster.Annotations).ClusterName,
			Labels:      labels,
			Annotations: annotations,
		},
		Spec: fleetv1.ClusterSpec{
			ClientID:         clientID,
			AgentNamespace:   in.Cluster.AgentNamespace,
			AgentTolerations: in.Cluster.AgentTolerations,
			AgentEnvVars:     in.Cluster.AgentEnvVars,
			AgentPullSecrets: in.Cluster.AgentPullSecrets,
			HostNetwork:      ptr.To(in.Cluster.HostNetwork),
		},
	}
	if clientID == "" {
		fleetCluster.Spec.KubeConfigSecret = secret.Name(cluster.Name, secret.Kubeconfig)
	}
	if values != nil && isWhole {
		fleetCluster.Spec.TemplateValues = &fleetv1.GenericMap{Data: values}
	}
	if in.Cluster.SetOwnerReferences {
		fleetCluster.OwnerReferences = []metav1.OwnerReference{Owner(cluster)}
	} else {
		annotations[stamp.ImportedUIDAnnotation] = string(cluster.UID)
		maps.Copy(annotations, spared)
	}
	return sealIf(isWhole, fleetCluster)
}

// Owner returns the owner reference that makes Kubernetes delete a Fleet Cluster with its Cluster. It
// does not set blockOwnerDeletion: deleting a Cluster must never wait for Fleet.
func Owner(cluster *clusterv1.Cluster) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: clusterv1.GroupVersion.String(),
		Kind:       clusterv1.ClusterKind,
		Name:       cluster.Name,
		UID:        cluster.UID,
	}
}
