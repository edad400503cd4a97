package oracle

import (
	"maps"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// use means that an object in a namespace uses a class of another namespace.
type use struct {
	namespace string
	class     Key
}

func (u use) group() Key {
	return Key{Namespace: u.namespace, Name: u.class.Name + "." + u.class.Namespace}
}
func (u use) mapping() Key { return Key{Namespace: u.class.Namespace, Name: u.namespace} }

// crosses reports whether the class is in another namespace.
func (u use) crosses() bool {
	return u.class.Name != "" && u.class.Namespace != "" && u.class.Namespace != u.namespace
}

// isMaker reports whether Muster makes objects for a Cluster: it must be claimed, selected now, not deleted and not
// paused. Nothing else that a user can write has this effect.
func (s *State) isMaker(in settings, cluster *clusterv1.Cluster) bool {
	return isClaimed(cluster) && cluster.DeletionTimestamp.IsZero() && !isPaused(cluster) &&
		in.selects(cluster, s.Namespaces[cluster.Namespace])
}

// users returns the makers, for which Muster makes groups and mappings, and the retainers, for which it keeps
// existing ones. Retainers are Clusters that are retained, being deleted or not claimed yet, and the classes that
// our Fleet Clusters still carry, as long as their Clusters exist or were moved.
func (s *State) users(in settings) (makers, retainers map[use]bool) {
	makers, retainers = map[use]bool{}, map[use]bool{}
	for _, cluster := range s.Clusters {
		used := use{cluster.Namespace, classOf(cluster)}
		isMaker := s.isMaker(in, cluster)
		awaited := cluster.DeletionTimestamp.IsZero() && in.selects(cluster, s.Namespaces[cluster.Namespace])
		switch {
		case !used.crosses():
		case isMaker && !s.isGroupTaken(in, cluster):
			makers[used] = true
		case isMaker || isClaimed(cluster) || awaited:
			retainers[used] = true
		}
	}
	for _, fleet := range s.FleetClusters {
		used := use{fleet.Namespace, groupedBy(fleet)}
		if used.crosses() && isOurs(fleet) && (s.isOfLiving(in, fleet) || fleet.Annotations[released] == "true") {
			retainers[used] = true
		}
	}
	return makers, retainers
}

// convergeTargets makes the groups and mappings of makers, keeps the ones of retainers byte for byte, deletes our
// unused ones, and does not touch those of other clients.
func (s *State) convergeTargets(in settings) {
	groups, mappings := map[Key]bool{}, map[Key]bool{}
	makers, retainers := s.users(in)
	if !in.classGroup {
		makers, retainers = nil, nil
	}
	for u := range retainers {
		groups[u.group()] = true
		// A mapping that is being retired stays retired.
		mappings[u.mapping()] = isLive(s.Mappings[u.mapping()])
	}
	for u := range makers {
		group, mapping := u.group(), u.mapping()
		groups[group] = true
		if old := s.Groups[group]; old == nil || isOurs(old) && in.patch {
			s.writeGroup(group, u.class, nil)
		}
		if s.Namespaces[mapping.Namespace] == nil {
			continue // There is no place for it, and no bundle to map.
		}
		mappings[mapping] = true
		// A retired one counts as deleted.
		if old := s.Mappings[mapping]; old == nil || isOurs(old) && (in.patch || old.BundleSelector == nil && old.NamespaceSelector == nil) {
			s.writeMapping(mapping)
		}
	}
	maps.DeleteFunc(s.Groups, func(key Key, group *fleetv1.ClusterGroup) bool {
		// A class's own group goes with its class. Without an owner reference it stays.
		return !groups[key] && isOurs(group) && s.Classes[key] == nil &&
			(isOfAnotherNamespace(group) || len(group.OwnerReferences) > 0)
	})
	maps.DeleteFunc(s.Mappings, func(key Key, mapping *fleetv1.BundleNamespaceMapping) bool {
		return !mappings[key] && isOurs(mapping)
	})
}

func isLive(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping != nil && mapping.BundleSelector != nil && mapping.NamespaceSelector != nil
}

// convergeClassGroups makes the group of each class. The group goes with its class through its owner reference;
// without one it stays.
func (s *State) convergeClassGroups(in settings) {
	for key, class := range s.Classes {
		if old := s.Groups[key]; !class.DeletionTimestamp.IsZero() || old != nil && !(isOurs(old) && in.classPatch) {
			continue
		}
		var owners []metav1.OwnerReference
		if in.classOwners {
			owners = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "ClusterClass", Name: class.Name, UID: class.UID}}
		}
		s.writeGroup(key, key, owners)
	}
}

func (s *State) writeGroup(key, class Key, owners []metav1.OwnerReference) {
	group := &fleetv1.ClusterGroup{}
	if old := s.Groups[key]; old != nil {
		group = old.DeepCopy()
	}
	stamp := map[string]string{classLabel: labelValue(class.Name), classNsLabel: class.Namespace}
	group.Namespace, group.Name, group.OwnerReferences = key.Namespace, key.Name, owners
	labels := copied(s.classLabels(class), othersIn(group.Labels), stamp)
	labels[managedBy] = "muster"
	if group.Labels, group.Annotations = labels, othersIn(group.Annotations); len(owners) == 0 {
		group.Annotations = spared(group.Annotations)
	}
	group.Spec.Selector = &metav1.LabelSelector{MatchLabels: stamp}
	s.Groups[key] = group
}

// writeMapping lets all bundles that users made reach the namespace, and no bundle that Fleet makes for its agents.
func (s *State) writeMapping(key Key) {
	mapping := &fleetv1.BundleNamespaceMapping{}
	if old := s.Mappings[key]; old != nil {
		mapping = old.DeepCopy()
	}
	mapping.Namespace, mapping.Name = key.Namespace, key.Name
	mapping.Labels = set(othersIn(mapping.Labels), managedBy, "muster")
	mapping.Annotations = spared(othersIn(mapping.Annotations))
	mapping.BundleSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "objectset.rio.cattle.io/hash", Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
	mapping.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": key.Name}}
	s.Mappings[key] = mapping
}

// isOfAnotherNamespace reports whether a group is for Clusters of a class in another namespace.
func isOfAnotherNamespace(group client.Object) bool {
	namespace := group.GetLabels()[classNsLabel]
	return namespace != "" && namespace != group.GetNamespace()
}

// convergeNamespaces annotates for Rancher each Namespace with a Cluster that Muster makes objects for. The annotation
// stays while a Cluster is claimed or selected, or a Fleet Cluster of ours has a living Cluster. An annotation of
// another client stays as it is.
func (s *State) convergeNamespaces(in settings) {
	made, retained := map[string]bool{}, map[string]bool{}
	for _, cluster := range s.Clusters {
		awaited := cluster.DeletionTimestamp.IsZero() && in.selects(cluster, s.Namespaces[cluster.Namespace])
		made[cluster.Namespace] = made[cluster.Namespace] || s.isMaker(in, cluster)
		retained[cluster.Namespace] = retained[cluster.Namespace] || isClaimed(cluster) || awaited
	}
	for key, fleet := range s.FleetClusters {
		retained[key.Namespace] = retained[key.Namespace] || isOurs(fleet) && s.isOfLiving(in, fleet)
	}
	for name, namespace := range s.Namespaces {
		switch {
		case made[name] && !has(namespace.Annotations, workspace):
			namespace.Annotations = set(namespace.Annotations, workspace, "true")
			namespace.ManagedFields = append(namespace.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager})
		case !made[name] && !retained[name] && isManager(namespace):
			delete(namespace.Annotations, workspace)
		}
	}
}
