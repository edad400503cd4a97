package desired

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agentBundleLabel is on the bundles that Fleet makes for its own agents (through
// wrangler's apply), and on no bundle that a user, a HelmOp or a GitRepo makes.
const agentBundleLabel = "objectset.rio.cattle.io/hash"

// Mapping returns the BundleNamespaceMapping that lets the bundles of a class's
// namespace reach the Clusters of another namespace. Fleet's agent bundles are left
// out: they are targeted by cluster name, and mapping them would hand a cluster the
// agent of its namesake beside the class.
func Mapping(classNamespace, clusterNamespace string) *fleetv1.BundleNamespaceMapping {
	mapping := emptyMapping(classNamespace, clusterNamespace)
	mapping.BundleSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: agentBundleLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
	mapping.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: clusterNamespace},
	}
	return seal(mapping)
}

// RetiredMapping returns the mapping before it is deleted: it maps nothing, but its existence
// records that Fleet has yet to drop what was deployed through it.
func RetiredMapping(classNamespace, clusterNamespace string) *fleetv1.BundleNamespaceMapping {
	return seal(emptyMapping(classNamespace, clusterNamespace))
}

func emptyMapping(classNamespace, clusterNamespace string) *fleetv1.BundleNamespaceMapping {
	return &fleetv1.BundleNamespaceMapping{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "BundleNamespaceMapping"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: classNamespace,
			Name:      clusterNamespace,
			Labels:    map[string]string{ManagedByLabel: ManagedBy},
		},
	}
}
