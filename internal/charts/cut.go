package charts

import (
	"bytes"
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
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
