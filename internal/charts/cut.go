package charts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/sync/observed"
)

// An empty item of a list is three bytes for the API server, and up to 170 in memory: what somebody
// else has put into a Bundle is cut in the cache, and read whole when the Bundle is to be written.
const (
	cutAnnotation = plan.ChartAnnotation + "-cut"
	// mostValues is more than the values, lists and maps of a Bundle of ours beside its chart and targets.
	mostValues = 500
	// mostNamed is more than the objects with values that a target, or all of them together, name.
	mostNamed = 8
	// mostTold bounds a BundleDeployment's conditions and non-ready resources, and mostWords the messages of
	// each resource: Fleet reports ten.
	mostTold, mostWords = 16, 4
)

// cutSpec reduces an oversized or foreign spec to little more than Muster writes. It notes that on the
// object, unless only surplus targets went.
func cutSpec(object client.Object, spec *fleetv1.BundleSpec) {
	isCut := false
	spec.Targets = observed.AtMost(plan.MostTargets, spec.Targets)
	for i := range spec.Targets {
		its := &spec.Targets[i]
		if kept := ourPart(its); !equality.Semantic.DeepEqual(&kept, its) {
			*its, isCut = kept, true
			its.Name = digestResource // So that it is not taken for what is wanted.
		}
	}
	rest := *spec
	rest.Targets, rest.Resources = nil, nil
	if content := toJSON(rest); bytes.Count(content, []byte("{"))+bytes.Count(content, []byte("["))+bytes.Count(content, []byte(",")) > mostValues {
		isCut = true
		kept := fleetv1.BundleSpec{Targets: spec.Targets, Resources: spec.Resources, Paused: spec.Paused}
		kept.DefaultNamespace, kept.KeepResources = spec.DefaultNamespace, spec.KeepResources
		kept.DownstreamResources = observed.AtMost(mostNamed, spec.DownstreamResources)
		kept.Helm = ourHelm(spec.Helm)
		if spec.HelmOpOptions != nil {
			kept.HelmOpOptions = &fleetv1.BundleHelmOptions{SecretName: spec.HelmOpOptions.SecretName, InsecureSkipTLSverify: spec.HelmOpOptions.InsecureSkipTLSverify}
		}
		*spec = kept
	}
	if isCut {
		capiannotations.AddAnnotations(object, map[string]string{cutAnnotation: "true"})
	}
}

// ourPart returns of a target what one of ours has.
func ourPart(target *fleetv1.BundleTarget) fleetv1.BundleTarget {
	result := fleetv1.BundleTarget{Name: target.Name, ClusterName: target.ClusterName}
	result.DownstreamResources = observed.AtMost(mostNamed, target.DownstreamResources)
	result.Helm = ourHelm(target.Helm)
	return result
}

// ourHelm returns those Helm options, of a Bundle or a target, that ours have or that Fleet adds when it
// makes a Bundle of a HelmOp.
func ourHelm(options *fleetv1.HelmOptions) *fleetv1.HelmOptions {
	if options == nil {
		return nil
	}
	return &fleetv1.HelmOptions{
		ReleaseName: options.ReleaseName, Repo: options.Repo, Chart: options.Chart, Version: options.Version,
		ValuesFrom: observed.AtMost(mostNamed, options.ValuesFrom),
	}
}

// cutStatus leaves of a BundleDeployment's status what is told of.
func cutStatus(status *fleetv1.BundleDeploymentStatus) {
	status.Resources, status.ModifiedStatus = nil, nil
	status.Conditions = observed.AtMost(mostTold, status.Conditions)
	status.NonReadyStatus = observed.AtMost(mostTold, status.NonReadyStatus)
	for i := range status.NonReadyStatus {
		summary := &status.NonReadyStatus[i].Summary
		summary.Message = observed.AtMost(mostWords, summary.Message)
	}
}

// isCut reports whether the cache has cut an object.
func isCut(object client.Object) bool { return object.GetAnnotations()[cutAnnotation] != "" }

// whole returns a Bundle uncut, for a write: otherwise what the cache has cut off would stay as somebody
// else made it, or be lost.
func (r *reconciler) whole(ctx context.Context, bundle *fleetv1.Bundle) (*fleetv1.Bundle, error) {
	if bundle == nil || !isCut(bundle) {
		return bundle, nil
	}
	live := &fleetv1.Bundle{}
	var object client.Object = live
	op := &fleetv1.HelmOp{}
	if plan.IsHelmOp(bundle) {
		object = op
	}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(bundle), object); err != nil {
		return nil, fmt.Errorf("reading %s: %w", describe(bundle), err)
	}
	if object == op {
		*live = plan.BundleFor(op)
	}
	return live, nil
}

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
