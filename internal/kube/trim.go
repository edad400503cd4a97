package kube

import (
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// A FleetAddonConfig has at most this many tolerations and environment variables. Anyone who may write a
// Fleet Cluster can give it half a million of three bytes each. Trim keeps one more than the maximum,
// so that the list differs from every desired one.
const (
	maxTolerations = 64
	maxEnvVars     = 128
	maxPullSecrets = 16
	// maxConditions is larger than the number of conditions that Fleet sets.
	maxConditions = 32
)

// Trim is a cache transform: it drops everything that Muster does not read, so that thousands of objects
// fit in little memory. Of managedFields it keeps the managers' names, of a Fleet Cluster's template
// values the hash; it compacts unstructured objects.
func Trim(object any) (any, error) {
	if large, ok := object.(*unstructured.Unstructured); ok {
		// An object that Clusters refer to; these are the largest.
		return object, Compact(large)
	}
	accessor, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	accessor.SetManagedFields(Managers(accessor.GetManagedFields()))
	maps.DeleteFunc(accessor.GetAnnotations(), func(key, _ string) bool { return desired.IsOut(key) })
	switch typed := object.(type) {
	case *fleetv1.Cluster:
		if values := typed.Spec.TemplateValues; values != nil {
			short := desired.ShortValues
			if typed.Labels[stamp.RancherClusterLabel] != "" {
				short = desired.ShortValuesByKey
			}
			typed.Spec.TemplateValues = &fleetv1.GenericMap{Data: short(values.Data)}
		}
		typed.Spec.AgentTolerations = AtMost(maxTolerations+1, typed.Spec.AgentTolerations)
		typed.Spec.AgentEnvVars = AtMost(maxEnvVars+1, typed.Spec.AgentEnvVars)
		if secrets := typed.Spec.AgentPullSecrets; secrets != nil {
			typed.Spec.AgentPullSecrets = new(AtMost(maxPullSecrets+1, *secrets)) // All Fleet Clusters share what the settings have.
		}
		typed.Spec.AgentAffinity, typed.Spec.AgentResources, typed.Spec.AgentSchedulingCustomization = nil, nil, nil
		typed.Status = fleetv1.ClusterStatus{
			Namespace:  reportedNamespace(typed.Status.Namespace),
			Conditions: AtMost(maxConditions, typed.Status.Conditions),
			Summary:    fleetv1.BundleSummary{DesiredReady: typed.Status.Summary.DesiredReady, Ready: typed.Status.Summary.Ready},
			Agent: fleetv1.AgentStatus{
				LastSeen: typed.Status.Agent.LastSeen, Namespace: reportedNamespace(typed.Status.Agent.Namespace),
			},
		}
		typed.OwnerReferences = stamp.BoundedOwners(typed)
	case *fleetv1.ClusterGroup:
		typed.Status = fleetv1.ClusterGroupStatus{}
	case *clusterv1.Cluster:
		typed.ManagedFields = nil
		typed.Status = clusterv1.ClusterStatus{
			Conditions:     conditionsRead(typed.Status.Conditions),
			Initialization: typed.Status.Initialization,
		}
	}
	return object, nil
}

// reportedNamespace returns the namespace that a status names, if it is a valid name.
func reportedNamespace(reported string) string {
	if len(validation.IsDNS1123Label(reported)) > 0 {
		return ""
	}
	return reported
}

// AtMost returns the first items of a list, copied if any are cut off.
func AtMost[T any](most int, all []T) []T {
	if len(all) <= most {
		return all
	}
	return slices.Clone(all[:most])
}

// Managers reduces managedFields to manager and operation.
func Managers(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var trimmed []metav1.ManagedFieldsEntry
	for _, entry := range entries {
		trimmed = append(trimmed, metav1.ManagedFieldsEntry{Manager: entry.Manager, Operation: entry.Operation})
	}
	return trimmed
}

// conditionsRead returns the conditions of a CAPI Cluster that Muster reads. There are a dozen others,
// with long messages.
func conditionsRead(all []metav1.Condition) []metav1.Condition {
	var read []metav1.Condition
	for _, condition := range all {
		if condition.Type == clusterv1.ClusterControlPlaneInitializedCondition || strings.HasPrefix(condition.Type, "Fleet") {
			read = append(read, condition)
		}
	}
	return read
}
