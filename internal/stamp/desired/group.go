package desired

import (
	"maps"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// ClassGroup returns the ClusterGroup of a ClusterClass. It has the class's name and namespace, and
// selects the class's Clusters there. While the class is paused, the group has no owner: clusterctl move
// pauses a class, copies it to another management cluster and deletes it, while Fleet goes on deploying
// to its Clusters through the group.
func ClassGroup(in settings.Settings, class *Class) *fleetv1.ClusterGroup {
	key := types.NamespacedName{Namespace: class.Namespace, Name: class.Name}
	group, isWhole := group(in, key, key, class)
	if in.Class.SetOwnerReferences && !capiannotations.HasPaused(class) {
		group.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(),
			Kind:       clusterv1.ClusterClassKind,
			Name:       class.Name,
			UID:        class.UID,
		}}
		group.Annotations = nil
	}
	return sealIf(isWhole, group)
}

// CrossNamespaceGroup returns the ClusterGroup, in a namespace of Clusters, for
// the Clusters there that use a class of another namespace. It belongs to no
// single Cluster and has no owner. The class may be nil: the group must exist
// before the Fleet Cluster, whether or not the class does.
func CrossNamespaceGroup(in settings.Settings, namespace string, classKey types.NamespacedName, class *Class) *fleetv1.ClusterGroup {
	name := stamp.GroupName(classKey.Name, classKey.Namespace)
	group, isWhole := group(in, types.NamespacedName{Namespace: namespace, Name: name}, classKey, class)
	return sealIf(isWhole, group)
}

// group returns a group without owner and hash; isWhole is false if there is TooMuch to copy from the class.
func group(in settings.Settings, key, classKey types.NamespacedName, class *Class) (its *fleetv1.ClusterGroup, isWhole bool) {
	labels := map[string]string{}
	if isWhole = TooMuch(in, nil, class) == ""; isWhole {
		labels = copied(in, classLabels(class))
	}
	maps.Copy(labels, stamp.Labels(classKey))
	labels[stamp.ManagedByLabel] = stamp.ManagedBy
	return &fleetv1.ClusterGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "ClusterGroup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   key.Namespace,
			Name:        key.Name,
			Labels:      labels,
			Annotations: maps.Clone(spared),
		},
		Spec: fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: stamp.Labels(classKey)}},
	}, isWhole
}

// agentBundleLabel is on the bundles that Fleet makes for its own agents (through
// wrangler's apply), and on no bundle that a user, a HelmOp or a GitRepo makes.
const agentBundleLabel = "objectset.rio.cattle.io/hash"

// Mapping returns the BundleNamespaceMapping that lets the bundles of a class's namespace reach the
// Clusters of another namespace. It excludes Fleet's agent bundles. Fleet targets these by cluster
// name, so a mapping would give a cluster the agent of its namesake in the class's namespace.
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

// BegunMapping returns Mapping with a RetargetAnnotation; empty for none.
func BegunMapping(classNamespace, clusterNamespace, retarget string) *fleetv1.BundleNamespaceMapping {
	mapping := Mapping(classNamespace, clusterNamespace)
	if retarget != "" {
		mapping.Annotations[RetargetAnnotation] = retarget
	}
	return mapping
}

// Maps reports whether a mapping maps at least what Mapping does.
func Maps(mapping *fleetv1.BundleNamespaceMapping) bool {
	want := Mapping(mapping.Namespace, mapping.Name)
	return covers(mapping.BundleSelector, want.BundleSelector) && covers(mapping.NamespaceSelector, want.NamespaceSelector)
}

// covers reports whether a selector is another one, or selects everything.
func covers(selector, other *metav1.LabelSelector) bool {
	return selector != nil && (equality.Semantic.DeepEqual(selector, other) || equality.Semantic.DeepEqual(selector, &metav1.LabelSelector{}))
}

// RetiredMapping returns the mapping as it is before it is deleted: it maps no bundle, but its
// existence records that Fleet has yet to drop the deployments made through it.
func RetiredMapping(classNamespace, clusterNamespace string) *fleetv1.BundleNamespaceMapping {
	return seal(emptyMapping(classNamespace, clusterNamespace))
}

func emptyMapping(classNamespace, clusterNamespace string) *fleetv1.BundleNamespaceMapping {
	return &fleetv1.BundleNamespaceMapping{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "BundleNamespaceMapping"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   classNamespace,
			Name:        clusterNamespace,
			Labels:      map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
			Annotations: maps.Clone(spared),
		},
	}
}
