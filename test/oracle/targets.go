package oracle

import (
	"maps"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// use says that something in a namespace uses a class of another namespace.
type use struct {
	namespace string
	class     Key
}

func (u use) group() Key {
	return Key{Namespace: u.namespace, Name: u.class.Name + "." + u.class.Namespace}
}
func (u use) mapping() Key { return Key{Namespace: u.class.Namespace, Name: u.namespace} }

// uses returns what decides about groups and mappings: the class that a claimed
// Cluster names, and the class that a Fleet Cluster of ours still carries, as long as
// its Cluster exists. They differ while the Cluster is frozen. The Fleet Cluster of a
// Cluster that was moved away counts until somebody deletes it.
func (s *State) uses() map[use]bool {
	result := map[use]bool{}
	for _, cluster := range s.Clusters {
		if class := classOf(cluster); isClaimed(cluster) {
			result[use{cluster.Namespace, class}] = true
		}
	}
	for _, fleet := range s.FleetClusters {
		_, lives := s.Clusters[Key{Namespace: fleet.Namespace, Name: originOf(fleet)}]
		if isOurs(fleet) && (lives || fleet.Annotations[released] == "true") {
			result[use{fleet.Namespace, groupedBy(fleet)}] = true
		}
	}
	maps.DeleteFunc(result, func(u use, _ bool) bool {
		return u.class.Name == "" || u.class.Namespace == "" || u.class.Namespace == u.namespace
	})
	return result
}

// awaited returns what a selected Cluster will use once it is claimed. It is not made
// before, but it does not go either.
func (s *State) awaited(in settings) map[use]bool {
	result := map[use]bool{}
	for _, cluster := range s.Clusters {
		if !isClaimed(cluster) && cluster.DeletionTimestamp.IsZero() && in.selects(cluster, s.Namespaces[cluster.Namespace]) {
			result[use{cluster.Namespace, classOf(cluster)}] = true
		}
	}
	return result
}

// settleTargets makes the groups and mappings that are in use, deletes those of ours
// that are not, and leaves other people's alone.
func (s *State) settleTargets(in settings) {
	groups, mappings := map[Key]bool{}, map[Key]bool{}
	uses, awaited := s.uses(), s.awaited(in)
	if !in.classGroup {
		uses, awaited = nil, nil
	}
	for u := range awaited {
		groups[u.group()], mappings[u.mapping()] = true, true
	}
	for u := range uses {
		group, mapping := u.group(), u.mapping()
		groups[group] = true
		if old := s.Groups[group]; old == nil || isOurs(old) && in.patch {
			s.writeGroup(group, u.class, nil)
		}
		if s.Namespaces[mapping.Namespace] == nil {
			continue // There is no place for it, and no bundle to map.
		}
		mappings[mapping] = true
		if old := s.Mappings[mapping]; old == nil || isOurs(old) && in.patch {
			s.writeMapping(mapping)
		}
	}
	maps.DeleteFunc(s.Groups, func(key Key, group *fleetv1.ClusterGroup) bool {
		return !groups[key] && isOurs(group) && isOfAnotherNamespace(group)
	})
	maps.DeleteFunc(s.Mappings, func(key Key, mapping *fleetv1.BundleNamespaceMapping) bool {
		return !mappings[key] && isOurs(mapping)
	})
}

// settleClassGroups makes the group of each class. It goes with its class, through
// its owner reference; without one it stays.
func (s *State) settleClassGroups(in settings) {
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
	group.Labels, group.Annotations = labels, othersIn(group.Annotations)
	group.Spec.Selector = &metav1.LabelSelector{MatchLabels: stamp}
	s.Groups[key] = group
}

// writeMapping lets every bundle a user made reach the namespace, and none of those
// that Fleet makes for its own agents.
func (s *State) writeMapping(key Key) {
	mapping := &fleetv1.BundleNamespaceMapping{}
	if old := s.Mappings[key]; old != nil {
		mapping = old.DeepCopy()
	}
	mapping.Namespace, mapping.Name = key.Namespace, key.Name
	mapping.Labels = set(othersIn(mapping.Labels), managedBy, "muster")
	mapping.Annotations = othersIn(mapping.Annotations)
	mapping.BundleSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "objectset.rio.cattle.io/hash", Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
	mapping.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": key.Name}}
	s.Mappings[key] = mapping
}

// isOfAnotherNamespace tells a group beside Clusters from the group of a class.
func isOfAnotherNamespace(group client.Object) bool {
	namespace := group.GetLabels()[classNsLabel]
	return namespace != "" && namespace != group.GetNamespace()
}

// settleNamespaces annotates the Namespaces of claimed Clusters for Rancher. An
// annotation that somebody else made stays as it is.
func (s *State) settleNamespaces(in settings) {
	claimed, awaited := map[string]bool{}, map[string]bool{}
	for _, cluster := range s.Clusters {
		claimed[cluster.Namespace] = claimed[cluster.Namespace] || isClaimed(cluster)
	}
	for u := range s.awaited(in) {
		awaited[u.namespace] = true
	}
	for name, namespace := range s.Namespaces {
		switch {
		case claimed[name] && !has(namespace.Annotations, workspace):
			namespace.Annotations = set(namespace.Annotations, workspace, "true")
			namespace.ManagedFields = append(namespace.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager})
		case !claimed[name] && !awaited[name] && isManager(namespace):
			delete(namespace.Annotations, workspace)
		}
	}
}
