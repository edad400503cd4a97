package charts

import (
	"crypto/sha256"
	"encoding/hex"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
)

const (
	// digestAnnotation on a Bundle is the digest of the chart as it was written.
	digestAnnotation = plan.ChartAnnotation + "-digest"
	// digestResource and digestKey stand in a cache for what they are the digest of.
	digestResource = "muster-digest"
)

// digestOf returns the digest of a chart in a Bundle, whole or short.
func digestOf(resources []fleetv1.BundleResource) string {
	if len(resources) == 1 && resources[0].Name == digestResource && resources[0].Encoding == digestResource {
		return resources[0].Content
	}
	return digest(toJSON(resources))
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

func digestOfValues(object client.Object) string {
	switch typed := object.(type) {
	case *corev1.ConfigMap:
		if short, found := typed.Data[digestResource]; found && len(typed.Data) == 1 {
			return short
		}
		return digest(toJSON(typed.Data))
	default:
		return ""
	}
}

// Trim is a cache transform: of charts and values it keeps the digest, which tells whether
// they are as they should be. Whoever forges what looks like ours decides how large it is: of what has
// no name that is given, nothing is kept.
func Trim(object any) (any, error) {
	switch typed := object.(type) {
	case *fleetv1.Bundle:
		if !plan.MayBeOurs(typed.Name) {
			typed.Spec = fleetv1.BundleSpec{}
		}
		cutSpec(typed, &typed.Spec)
		typed.ManagedFields, typed.Status = nil, fleetv1.BundleStatus{ObservedGeneration: typed.Status.ObservedGeneration}
		typed.Spec.Resources = []fleetv1.BundleResource{{Name: digestResource, Content: digestOf(typed.Spec.Resources), Encoding: digestResource}}
	case *fleetv1.HelmOp:
		if !plan.MayBeOurs(typed.Name) {
			typed.Spec = fleetv1.HelmOpSpec{}
		}
		cutSpec(typed, &typed.Spec.BundleSpec)
		typed.ManagedFields = nil
		status := fleetv1.HelmOpStatus{}
		for _, condition := range typed.Status.Conditions {
			if condition.Type == fleetv1.HelmOpAcceptedCondition {
				status.Conditions = append(status.Conditions, condition)
			}
		}
		typed.Status = status
	case *corev1.ConfigMap:
		typed.ManagedFields, typed.BinaryData = nil, nil
		typed.Data = map[string]string{digestResource: digestOfValues(typed)}
	case *fleetv1.BundleDeployment:
		typed.ManagedFields, typed.Annotations = nil, nil
		cutStatus(&typed.Status)
		spec := fleetv1.BundleDeploymentSpec{
			Paused: typed.Spec.Paused, DeploymentID: typed.Spec.DeploymentID, StagedDeploymentID: typed.Spec.StagedDeploymentID,
			DownstreamResourcesGeneration: typed.Spec.DownstreamResourcesGeneration,
			Options:                       fleetv1.BundleDeploymentOptions{DownstreamResources: ours(typed.Spec.Options.DownstreamResources)},
			StagedOptions:                 fleetv1.BundleDeploymentOptions{DownstreamResources: ours(typed.Spec.StagedOptions.DownstreamResources)},
		}
		typed.Spec = spec
	}
	return object, nil
}

// ours returns the few objects that a Bundle of ours has copied.
func ours(copied []fleetv1.DownstreamResource) []fleetv1.DownstreamResource {
	const most, longest = 2, 253 // The values for all Clusters, and one's own.
	var result []fleetv1.DownstreamResource
	for _, its := range copied {
		if plan.MayBeOurs(its.Name) && len(its.Name) <= longest && len(its.Kind) <= longest && len(result) < most {
			result = append(result, its)
		}
	}
	return result
}
