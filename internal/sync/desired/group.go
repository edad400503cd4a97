package desired

import (
	"maps"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// ClassGroup returns the ClusterGroup of a ClusterClass: same name, same
// namespace, selecting the class's clusters there.
func ClassGroup(in settings.Settings, class *Class) *fleetv1.ClusterGroup {
	key := types.NamespacedName{Namespace: class.Namespace, Name: class.Name}
	group := group(key, key, class)
	if in.Class.SetOwnerReferences {
		group.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(),
			Kind:       clusterv1.ClusterClassKind,
			Name:       class.Name,
			UID:        class.UID,
		}}
	}
	return seal(group)
}

// CrossNamespaceGroup returns the ClusterGroup, in a namespace of Clusters, for
// the Clusters there that use a class of another namespace. It belongs to no
// single Cluster and has no owner. The class may be nil: the group must exist
// before the Fleet Cluster, whether or not the class does.
func CrossNamespaceGroup(namespace string, classKey types.NamespacedName, class *Class) *fleetv1.ClusterGroup {
	name := stamp.GroupName(classKey.Name, classKey.Namespace)
	return seal(group(types.NamespacedName{Namespace: namespace, Name: name}, classKey, class))
}

func group(key, classKey types.NamespacedName, class *Class) *fleetv1.ClusterGroup {
	labels := copied(classLabels(class))
	maps.Copy(labels, stamp.Labels(classKey))
	labels[ManagedByLabel] = ManagedBy
	return &fleetv1.ClusterGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "ClusterGroup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      key.Name,
			Labels:    labels,
		},
		Spec: fleetv1.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: stamp.Labels(classKey)}},
	}
}
