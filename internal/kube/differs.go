package kube

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// Differs reports whether applying the desired object would change the live one: it is not settled. A field that was applied
// earlier and is no longer desired shows by the hash of the last apply. Template values are compared by their hash, because a
// cache has no more of them.
func Differs(want, have client.Object) bool {
	its := settled(want, have)
	switch its := its.(type) {
	case *fleetv1.Cluster:
		wanted, values := its.Spec.TemplateValues, have.(*fleetv1.Cluster).Spec.TemplateValues
		if wanted != values && (values == nil || desired.HashOfValues(wanted.Data) != desired.HashOfValues(values.Data)) {
			return true
		}
		its.Spec.TemplateValues = values
	case *fleetv1.ClusterGroup, *fleetv1.BundleNamespaceMapping:
	default:
		return true // No rule says which of its fields count.
	}
	return !equality.Semantic.DeepEqual(its, have)
}

// settled returns an object with the desired fields, and without additions by others to fields that belong to Muster alone:
// template values, tolerations, environment, kubeconfig, selectors, the keys of Muster's domain, and owners of Cluster API's
// kinds. Other additions stay. The result shares its fields with both objects.
func settled(want, have client.Object) client.Object {
	result := ShallowCopy(have)
	result.SetLabels(settledKeys(have.GetLabels(), want.GetLabels()))
	result.SetAnnotations(settledKeys(have.GetAnnotations(), want.GetAnnotations()))
	result.SetOwnerReferences(settledOwners(have, want))
	switch want := want.(type) {
	case *fleetv1.Cluster:
		spec := &result.(*fleetv1.Cluster).Spec
		spec.TemplateValues = cmp.Or(want.Spec.TemplateValues, spec.TemplateValues)
		spec.AgentTolerations, spec.AgentEnvVars = want.Spec.AgentTolerations, want.Spec.AgentEnvVars
		spec.AgentPullSecrets = cmp.Or(want.Spec.AgentPullSecrets, spec.AgentPullSecrets)
		spec.AgentNamespace, spec.HostNetwork = want.Spec.AgentNamespace, want.Spec.HostNetwork
		spec.ClientID = cmp.Or(want.Spec.ClientID, spec.ClientID)
		// It must be empty if the agent registers itself: with another client's kubeconfig, Fleet would import the
		// cluster.
		spec.KubeConfigSecret = want.Spec.KubeConfigSecret
	case *fleetv1.ClusterGroup:
		result.(*fleetv1.ClusterGroup).Spec.Selector = want.Spec.Selector
	case *fleetv1.BundleNamespaceMapping:
		// A retired mapping must map nothing, even if edited.
		its := result.(*fleetv1.BundleNamespaceMapping)
		its.BundleSelector, its.NamespaceSelector = want.BundleSelector, want.NamespaceSelector
	}
	return result
}

// settledKeys returns labels or annotations with the desired ones, and without others of Muster's own domain. It copies
// nothing if nothing changes, as for nearly every Fleet Cluster that Differs sees.
func settledKeys(have, want map[string]string) map[string]string {
	isUndesired := func(key, _ string) bool { _, wanted := want[key]; return !wanted && stamp.IsKey(key) }
	isSettled := Contains(have, want)
	for key := range have {
		isSettled = isSettled && !isUndesired(key, "")
	}
	if isSettled {
		return have
	}
	all := maps.Clone(have)
	maps.DeleteFunc(all, isUndesired)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, want)
	return all
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

// Contains reports whether one map has all entries of another.
func Contains(have, want map[string]string) bool {
	for key, value := range want {
		if got, ok := have[key]; !ok || got != value {
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
