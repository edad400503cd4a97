package store

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
)

// An empty item of a list is three bytes for the API server, and up to 170 in memory. The cache keeps no spec of a Bundle
// that has many more items than Muster's, and no such Bundle is read past it: see CutError.
const (
	// mostSyntax is larger than the number of braces, brackets and commas in one of Muster's Bundles, outside its files, also
	// if a HelmChartProxy got more spec.valuesFrom after its Bundle was full.
	mostSyntax = 30_000
	// mostCopied is larger than the number of objects with values that a target of ours names.
	mostCopied = 8
	// mostRelease is larger than the number of bytes of a namespace, a name and a revision.
	mostRelease = 300
	// mostReported is the maximum number of conditions that the cache keeps of a BundleDeployment.
	mostReported = 16
	// digestMark stands in the cache for files and values, with their digest.
	digestMark = "muster-digest"
)

// cutAnnotation is on objects in the cache. Its name differs in each process, so that no user can write it.
var cutAnnotation = "cut-in-the-cache-" + rand.Text()

// IsCut reports whether the cache has cut an object.
func IsCut(object client.Object) bool { return object.GetAnnotations()[cutAnnotation] != "" }

// Trim is a cache transform: it keeps only the digest of files and values, and only those fields of Fleet's
// objects that this program reads.
func Trim(object any) (any, error) {
	if release, ok := object.(*addonsv1.HelmReleaseProxy); ok {
		if release.Annotations[plan.RecordAnnotation] != "" { // Others may write anything there, and many reconciles would parse it.
			release.Annotations[plan.RecordAnnotation] = plan.ReadRecord(release)
		}
		return kube.Trim(release)
	}
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
		typed.Spec.Options.DownstreamResources = kube.AtMost(mostCopied, spec.Options.DownstreamResources)
		typed.Spec.Options.ForceSyncGeneration = spec.Options.ForceSyncGeneration
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

func trimBundle(bundle *fleetv1.Bundle) {
	digest := FilesDigest(bundle)
	bundle.Spec.Resources = nil
	content, err := json.Marshal(bundle.Spec)
	if err != nil || len(bundle.Spec.Targets) > 2*plan.MaxTargets || syntaxOf(content) > mostSyntax {
		bundle.Spec = fleetv1.BundleSpec{Paused: bundle.Spec.Paused}
		capiannotations.AddAnnotations(bundle, map[string]string{cutAnnotation: "true"})
	}
	if digest != "" {
		bundle.Spec.Resources = []fleetv1.BundleResource{{Name: digestMark, Content: digest, Encoding: digestMark}}
	}
	status := fleetv1.BundleStatus{ObservedGeneration: bundle.Status.ObservedGeneration}
	if slices.ContainsFunc(bundle.Status.Conditions, isRefusal) {
		status.Conditions = []genericcondition.GenericCondition{{Type: refused}}
	}
	bundle.Status = status
}

// refused is the type of the condition that a Bundle in the cache has while Fleet refuses it because of a Policy.
const refused = "RefusedByPolicy"

// isRefusal matches the conditions in which Fleet says so, and that of the cache.
func isRefusal(its genericcondition.GenericCondition) bool {
	// So the errors of AuthorizeBundle in Fleet 0.16 begin. Otherwise, the message is that of an agent, at any length.
	isAbout := strings.HasPrefix(its.Message, "serviceAccount is required by Policy") || strings.HasPrefix(its.Message, "disallowed serviceAccount ")
	return its.Type == refused || its.Type == string(fleetv1.Ready) && its.Status == corev1.ConditionFalse && isAbout
}

// IsRefused reports whether Fleet has refused a Bundle because of a Policy when it last looked at it.
func IsRefused(bundle *fleetv1.Bundle) bool {
	return slices.ContainsFunc(bundle.Status.Conditions, isRefusal)
}

// syntaxOf counts the braces, brackets and commas of JSON.
func syntaxOf(content []byte) (count int) {
	for _, its := range content {
		if its == '{' || its == '[' || its == ',' {
			count++
		}
	}
	return count
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
