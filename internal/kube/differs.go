package kube

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// Differs reports whether applying the desired object would change the live one: a desired field is
// missing or altered, a field applied earlier is no longer desired (by the hash of the last apply), or
// there is an undesired key of Muster's own domain, whoever wrote it. Other additions do not count.
func Differs(want, have client.Object) bool {
	if hasUndesired(have, want) {
		return true
	}
	if !Contains(have.GetLabels(), want.GetLabels()) || !Contains(have.GetAnnotations(), want.GetAnnotations()) {
		return true
	}
	if !containsOwners(have.GetOwnerReferences(), want.GetOwnerReferences()) {
		return true
	}
	switch want := want.(type) {
	case *fleetv1.Cluster:
		return clusterSpecDiffers(want.Spec, have.(*fleetv1.Cluster).Spec)
	case *fleetv1.ClusterGroup:
		return !equality.Semantic.DeepEqual(want.Spec.Selector, have.(*fleetv1.ClusterGroup).Spec.Selector)
	case *fleetv1.BundleNamespaceMapping:
		have := have.(*fleetv1.BundleNamespaceMapping)
		return !equality.Semantic.DeepEqual(want.BundleSelector, have.BundleSelector) ||
			!equality.Semantic.DeepEqual(want.NamespaceSelector, have.NamespaceSelector)
	default:
		return true
	}
}

func clusterSpecDiffers(want, have fleetv1.ClusterSpec) bool {
	return want.KubeConfigSecret != have.KubeConfigSecret ||
		want.ClientID != "" && want.ClientID != have.ClientID ||
		want.AgentNamespace != have.AgentNamespace ||
		!equality.Semantic.DeepEqual(want.AgentTolerations, have.AgentTolerations) ||
		!equality.Semantic.DeepEqual(want.AgentEnvVars, have.AgentEnvVars) ||
		pullSecretsDiffer(want.AgentPullSecrets, have.AgentPullSecrets) ||
		!equality.Semantic.DeepEqual(want.HostNetwork, have.HostNetwork) ||
		want.TemplateValues != nil && hashOf(want.TemplateValues) != hashOf(have.TemplateValues)
}

// pullSecretsDiffer reports whether a Fleet Cluster lacks the desired pull secrets. An empty list is not the same as none, and
// where none is wanted, others may have set one.
func pullSecretsDiffer(want, have *[]corev1.LocalObjectReference) bool {
	return want != nil && (have == nil || !slices.Equal(*want, *have))
}

// hashOf returns the hash of template values, whole or trimmed.
func hashOf(values *fleetv1.GenericMap) string {
	if values == nil {
		return ""
	}
	return desired.HashOfValues(values.Data)
}

// hasUndesired reports whether an object has undesired keys or owners that only Muster may set: keys of
// Muster's own domain, and owners of Cluster API's kinds.
func hasUndesired(have, want client.Object) bool {
	return anyUndesired(have.GetLabels(), want.GetLabels()) || anyUndesired(have.GetAnnotations(), want.GetAnnotations()) ||
		slices.ContainsFunc(have.GetOwnerReferences(), func(owner metav1.OwnerReference) bool { return isUndesiredOwner(owner, want) })
}

// isUndesiredOwner recognizes an undesired owner from Cluster API: it would keep the object alive, or get it
// deleted.
func isUndesiredOwner(owner metav1.OwnerReference, want client.Object) bool {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && version.Group == clusterv1.GroupVersion.Group && wantedOwner(owner, want) == nil
}

func wantedOwner(owner metav1.OwnerReference, want client.Object) *metav1.OwnerReference {
	for _, wanted := range want.GetOwnerReferences() {
		if wanted.UID == owner.UID {
			return &wanted
		}
	}
	return nil
}

// settledOwners returns the owners of an object without undesired ones, and the desired ones in their desired form: one
// may have been edited to block deletions.
func settledOwners(have, want client.Object) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, owner := range have.GetOwnerReferences() {
		if wanted := wantedOwner(owner, want); wanted != nil {
			owners = append(owners, *wanted)
		} else if !isUndesiredOwner(owner, want) {
			owners = append(owners, owner)
		}
	}
	for _, owner := range want.GetOwnerReferences() {
		if wantedOwner(owner, have) == nil {
			owners = append(owners, owner)
		}
	}
	return owners
}

func anyUndesired(have, want map[string]string) bool {
	for key := range have {
		if isUndesired(key, want) {
			return true
		}
	}
	return false
}

func isUndesired(key string, want map[string]string) bool {
	if !stamp.IsKey(key) {
		return false
	}
	_, wanted := want[key]
	return !wanted
}

// settled returns labels or annotations without undesired ones, and with the desired ones.
func settled(have, want map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, have)
	maps.DeleteFunc(all, func(key, _ string) bool { return isUndesired(key, want) })
	maps.Copy(all, want)
	return all
}

// Contains reports whether one map has all entries of another.
func Contains(have, want map[string]string) bool {
	for key, value := range want {
		if got, ok := have[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func containsOwners(have, want []metav1.OwnerReference) bool {
	for _, owner := range want {
		found := false
		for _, candidate := range have {
			found = found || equality.Semantic.DeepEqual(owner, candidate)
		}
		if !found {
			return false
		}
	}
	return true
}

// unspared returns the annotations that an object has because it has no owner, and that go when it gets one. The cache does
// not say who has set them: on an object that has its owner, they are another writer's.
func unspared(have, want client.Object) (keys []string) {
	isOwner := func(owner metav1.OwnerReference) bool { return wantedOwner(owner, want) != nil }
	if len(want.GetOwnerReferences()) == 0 || slices.ContainsFunc(have.GetOwnerReferences(), isOwner) {
		return nil
	}
	for key, value := range desired.Spared() {
		if _, wanted := want.GetAnnotations()[key]; !wanted && have.GetAnnotations()[key] == value {
			keys = append(keys, key)
		}
	}
	return keys
}

// patched returns the annotations of an object without owner, and those that stand in for them, that an apply has left
// although they are not wanted: a patch of Muster's has set them.
func patched(live, want client.Object) (keys []string) {
	others := setByOthers(live)
	for key := range desired.Spared() {
		_, found := live.GetAnnotations()[key]
		if _, wanted := want.GetAnnotations()[key]; found && !wanted && !others[key] {
			keys = append(keys, key)
		}
	}
	return keys
}

// setByOthers returns the labels and annotations of a whole object that other clients than Muster and CAAPF have set. It reads
// the managed fields once, however many labels there are.
func setByOthers(live client.Object) map[string]bool {
	keys := map[string]bool{}
	for _, entry := range live.GetManagedFields() {
		if stamp.IsManagerName(entry.Manager) || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels      map[string]struct{} `json:"f:labels"`
				Annotations map[string]struct{} `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		_ = json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) // The API server wrote it.
		for _, its := range []map[string]struct{}{fields.Metadata.Labels, fields.Metadata.Annotations} {
			for key := range its {
				keys[strings.TrimPrefix(key, "f:")] = true
			}
		}
	}
	return keys
}
