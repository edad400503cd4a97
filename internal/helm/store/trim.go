package store

import (
	"bytes"
	"encoding/json"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
)

// An empty item of a list is three bytes for the API server, and up to 170 in memory. The cache cuts
// foreign contents out of objects that look like Muster's; a write reads the whole object first.
const (
	cutAnnotation = "cut-in-the-cache"
	// mostSyntax is larger than the number of braces, brackets and commas in one of Muster's Bundles, outside its
	// files and targets.
	mostSyntax = 500
	// mostNamed is larger than the number of objects with values that a target of ours names.
	mostNamed = 8
	// mostKeys is larger than the number of layers of values of a HelmChartProxy.
	mostKeys = 20
	// mostRelease is larger than the number of bytes of a namespace, a name and a revision.
	mostRelease = 300
	// mostReported is the maximum number of conditions that the cache keeps of a BundleDeployment.
	mostReported = 16
	// digestMark stands in the cache for files and values, with their digest.
	digestMark = "muster-digest"
)

// IsCut reports whether the cache has cut an object.
func IsCut(object client.Object) bool { return object.GetAnnotations()[cutAnnotation] != "" }

// Trim is a cache transform: it keeps only the digest of files and values, and only those fields of Fleet's
// objects that this program reads.
func Trim(object any) (any, error) {
	if its, ok := object.(client.Object); ok {
		its.SetManagedFields(nil)
	}
	switch typed := object.(type) {
	case *fleetv1.Bundle:
		trimBundle(typed)
	case *corev1.ConfigMap:
		typed.Data = map[string]string{digestMark: dataDigest(typed)}
		if typed.BinaryData != nil {
			typed.BinaryData = map[string][]byte{}
		}
	case *fleetv1.BundleDeployment:
		typed.Annotations = nil
		spec := typed.Spec
		typed.Spec = fleetv1.BundleDeploymentSpec{
			DeploymentID: spec.DeploymentID, StagedDeploymentID: spec.StagedDeploymentID,
			DownstreamResourcesGeneration: spec.DownstreamResourcesGeneration,
		}
		typed.Spec.Options.DownstreamResources = ours(spec.Options.DownstreamResources)
		typed.Spec.Options.ForceSyncGeneration = spec.Options.ForceSyncGeneration
		typed.Spec.StagedOptions.DownstreamResources = ours(spec.StagedOptions.DownstreamResources)
		status := typed.Status
		typed.Status = fleetv1.BundleDeploymentStatus{
			Conditions: short(kube.AtMost(mostReported, status.Conditions)), AppliedDeploymentID: status.AppliedDeploymentID, Release: message.Short(status.Release, mostRelease),
			Ready: status.Ready, NonModified: status.NonModified, DownstreamResourcesGeneration: status.DownstreamResourcesGeneration,
		}
	}
	return object, nil
}

// short cuts the messages of conditions: agents write them, at any length.
func short(conditions []genericcondition.GenericCondition) []genericcondition.GenericCondition {
	for i := range conditions {
		conditions[i].Message = message.Short(conditions[i].Message, message.Condition)
	}
	return conditions
}

// ours returns the objects with values that a target of ours names.
func ours(copied []fleetv1.DownstreamResource) []fleetv1.DownstreamResource {
	const longest = 253
	var result []fleetv1.DownstreamResource
	for _, its := range copied {
		if plan.MayBeOurs(its.Name) && len(its.Name) <= longest && len(its.Kind) <= longest && len(result) < mostNamed {
			result = append(result, its)
		}
	}
	return result
}

func trimBundle(bundle *fleetv1.Bundle) {
	spec := &bundle.Spec
	digest := FilesDigest(bundle)
	spec.Resources = nil
	isCut := len(spec.Targets) > 2*plan.MaxTargets
	spec.Targets = kube.AtMost(2*plan.MaxTargets, spec.Targets)
	for i := range spec.Targets {
		if its := &spec.Targets[i]; !equality.Semantic.DeepEqual(ourPart(its), *its) {
			*its, isCut = ourPart(its), true
		}
	}
	rest := *spec
	rest.Targets = nil
	if its := spec.RolloutStrategy; its != nil && len(its.Partitions) <= 2*plan.MaxTargets && !slices.ContainsFunc(its.Partitions, isForeign) {
		rest.RolloutStrategy = nil
	}
	if content, err := json.Marshal(rest); err != nil || count(content, "{")+count(content, "[")+count(content, ",") > mostSyntax {
		*spec, isCut = fleetv1.BundleSpec{Targets: spec.Targets, Paused: spec.Paused}, true
	}
	if isCut {
		capiannotations.AddAnnotations(bundle, map[string]string{cutAnnotation: "true"})
	}
	if digest != "" {
		spec.Resources = []fleetv1.BundleResource{{Name: digestMark, Content: digest, Encoding: digestMark}}
	}
	status := bundle.Status
	bundle.Status = fleetv1.BundleStatus{ObservedGeneration: status.ObservedGeneration}
}

// isForeign reports whether a partition has fields that the partitions of Muster's Bundles do not have.
func isForeign(its fleetv1.Partition) bool {
	return !equality.Semantic.DeepEqual(its, fleetv1.Partition{Name: its.Name, ClusterName: its.ClusterName})
}

func count(content []byte, of string) int { return bytes.Count(content, []byte(of)) }

// ourPart returns only those parts of a target that Muster's targets have.
func ourPart(target *fleetv1.BundleTarget) fleetv1.BundleTarget {
	result := fleetv1.BundleTarget{Name: target.Name, ClusterName: target.ClusterName}
	result.DownstreamResources = kube.AtMost(mostNamed, target.DownstreamResources)
	result.ForceSyncGeneration, result.CorrectDrift = target.ForceSyncGeneration, target.CorrectDrift
	if helm := target.Helm; helm != nil {
		result.Helm = &fleetv1.HelmOptions{ReleaseName: helm.ReleaseName, Chart: helm.Chart, ValuesFrom: kube.AtMost(mostKeys, helm.ValuesFrom)}
	}
	return result
}

// FilesDigest returns the digest of the files in a Bundle, whole or in the cache; empty without any.
func FilesDigest(bundle *fleetv1.Bundle) string {
	files := bundle.Spec.Resources
	switch {
	case len(files) == 0:
		return ""
	case len(files) == 1 && files[0].Name == digestMark && files[0].Encoding == digestMark:
		return files[0].Content
	}
	return plan.DigestOfFiles(files)
}

// dataDigest returns the digest of a ConfigMap's data, whether whole or trimmed by the cache.
func dataDigest(configMap *corev1.ConfigMap) string {
	if digest, is := configMap.Data[digestMark]; is && len(configMap.Data) == 1 && configMap.BinaryData == nil {
		return digest
	}
	return plan.Digest([]byte(plan.JSON([]any{configMap.Data, len(configMap.BinaryData)})))
}
