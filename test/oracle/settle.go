package oracle

import (
	"maps"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Settle returns the state in which Muster comes to rest.
func Settle(was State) State {
	s, in := was.Copy(), settingsOf(was.Config)
	for _, class := range s.Classes {
		class.Finalizers = withoutLegacy(class.Finalizers)
	}
	for _, cluster := range s.Clusters {
		cluster.Finalizers = withoutLegacy(cluster.Finalizers)
	}
	s.collectGarbage()
	for _, cluster := range s.Clusters {
		if in.enabled { // Turned off, everything stays as it is.
			s.settleCluster(in, cluster)
		}
	}
	if in.classEnabled {
		s.settleClassGroups(in)
	}
	if in.enabled {
		s.settleTargets(in)
		s.settleNamespaces(in)
	}
	return s
}

// Admitted returns a Cluster as the webhook answers its creation: pinned if it is
// selected, and otherwise without a pin, even one it brings along. Fleet is not asked
// for an existing name, and a name that is yet to be generated is not pinned.
func Admitted(s State, requested *clusterv1.Cluster) *clusterv1.Cluster {
	cluster, in := requested.DeepCopy(), settingsOf(s.Config)
	stampClass(cluster)
	if cluster.Name != "" && in.selects(cluster, s.Namespaces[cluster.Namespace]) {
		(&State{}).pin(in, cluster)
	} else {
		unpin(cluster)
	}
	return cluster
}

// settleCluster stamps one Cluster and brings its Fleet Cluster about.
func (s *State) settleCluster(in settings, cluster *clusterv1.Cluster) {
	fleet := s.FleetClusters[fleetKey(cluster)]
	imported := fleet != nil && belongs(fleet, cluster)

	deleting := !cluster.DeletionTimestamp.IsZero() // Then nothing but the owner matters.
	if moves := ptr.Deref(cluster.Spec.Paused, false); moves || has(cluster.Annotations, pauseAnnotation) {
		// Nothing is written, with one exception: spec.paused takes the owner reference
		// off, so that clusterctl move does not undeploy what runs on the cluster.
		if imported && moves && !deleting && isOwner(fleet, cluster.UID) {
			fleet.OwnerReferences = nil
			fleet.Annotations = set(fleet.Annotations, released, "true")
		}
		switch {
		case deleting:
		case isClaimed(cluster) || in.selects(cluster, s.Namespaces[cluster.Namespace]):
			report(cluster, imported, "Paused")
		default: // None of our business.
			meta.RemoveStatusCondition(&cluster.Status.Conditions, importedCondition)
		}
		return
	}
	if imported && fleet.Annotations[released] != "" { // Unpaused: the exception is undone.
		delete(fleet.Annotations, released)
		fleet.OwnerReferences = in.ownersOf(cluster)
	}
	if deleting {
		return
	}

	stampClass(cluster)
	if !in.selects(cluster, s.Namespaces[cluster.Namespace]) {
		switch {
		case !isClaimed(cluster): // None of our business.
			meta.RemoveStatusCondition(&cluster.Status.Conditions, importedCondition)
		case in.deletesDeselected:
			if imported {
				delete(s.FleetClusters, fleetKey(cluster))
			}
			unpin(cluster)
			meta.RemoveStatusCondition(&cluster.Status.Conditions, importedCondition)
		default: // Kept, frozen as it is.
			report(cluster, imported, "Deselected")
		}
		return
	}

	s.pin(in, cluster)
	fleet = s.FleetClusters[fleetKey(cluster)]
	switch {
	case fleet != nil && !belongs(fleet, cluster):
		report(cluster, false, "NameConflict")
		return
	case fleet == nil && !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false):
		report(cluster, false, "WaitingForControlPlane")
		return
	}
	values, resolved := s.templateValues(in, cluster)
	if !resolved && fleet == nil {
		report(cluster, false, "TemplateValuesUnresolved")
		return
	}
	if fleet == nil || in.patch {
		s.writeFleetCluster(in, cluster, fleet, values)
	}
	report(cluster, true, map[bool]string{true: "Imported", false: "TemplateValuesUnresolved"}[resolved])
}

// stampClass puts the labels of its class on a Cluster; without a class it has none.
func stampClass(cluster *clusterv1.Cluster) {
	class := classOf(cluster)
	cluster.Labels = set(cluster.Labels, classLabel, labelValue(class.Name))
	cluster.Labels = set(cluster.Labels, classNsLabel, class.Namespace)
	cluster.Annotations = set(cluster.Annotations, fullClass, map[bool]string{true: class.Name}[labelValue(class.Name) != class.Name])
}

// pin claims a selected Cluster, once: under the name of the Fleet Cluster it already
// has, the name it was created with, or the one that naming gives.
func (s *State) pin(in settings, cluster *clusterv1.Cluster) {
	if isClaimed(cluster) {
		return
	}
	name := s.existingName(cluster)
	if name == "" && isDNSLabel(cluster.Annotations[pinnedName]) {
		name = cluster.Annotations[pinnedName]
	}
	if name == "" {
		name = fleetName(in.prefix + cluster.Name + in.suffix)
	}
	cluster.Annotations = set(cluster.Annotations, ownedBy, "fleet-addon-config")
	cluster.Annotations = set(cluster.Annotations, pinnedName, name)
}

func unpin(cluster *clusterv1.Cluster) {
	delete(cluster.Annotations, ownedBy)
	delete(cluster.Annotations, pinnedName)
}

func (s *State) existingName(cluster *clusterv1.Cluster) string {
	var owned, named string
	for key, fleet := range s.FleetClusters {
		switch {
		case key.Namespace != cluster.Namespace:
		case isOwner(fleet, cluster.UID):
			owned = key.Name
		case fleet.Annotations[importedFrom] == cluster.Name:
			named = key.Name
		}
	}
	if owned != "" {
		return owned
	}
	return named
}

// writeFleetCluster makes the Fleet Cluster as it should be. If a reference of the
// Cluster cannot be resolved there are no values, and the last good ones stay.
func (s *State) writeFleetCluster(in settings, cluster *clusterv1.Cluster, old *fleetv1.Cluster, values map[string]any) {
	if old == nil {
		old = &fleetv1.Cluster{}
		old.Namespace, old.Name = cluster.Namespace, cluster.Annotations[pinnedName]
	}
	class := classOf(cluster)
	fleet := old.DeepCopy()
	// Labels of the Cluster and of its class: the Cluster's win. The stamp comes with the Cluster's.
	fleet.Labels = copied(s.classLabels(class), cluster.Labels)
	fleet.Labels[managedBy] = "muster"
	maps.Copy(fleet.Labels, othersIn(old.Labels))
	fleet.Annotations = copied(cluster.Annotations)
	fleet.Annotations[importedFrom] = cluster.Name
	if full := cluster.Annotations[fullClass]; full != "" {
		fleet.Annotations[fullClass] = full
	}
	maps.Copy(fleet.Annotations, othersIn(old.Annotations))
	fleet.OwnerReferences = in.ownersOf(cluster)
	fleet.Spec = fleetv1.ClusterSpec{
		ClientID:         old.Spec.ClientID, // Fleet's own.
		KubeConfigSecret: cluster.Name + "-kubeconfig",
		AgentNamespace:   in.agentNamespace,
		AgentTolerations: in.tolerations,
		AgentEnvVars:     in.envVars,
		HostNetwork:      ptr.To(in.hostNetwork),
		TemplateValues:   old.Spec.TemplateValues,
	}
	if values != nil {
		fleet.Spec.TemplateValues = &fleetv1.GenericMap{Data: values}
	}
	s.FleetClusters[client.ObjectKeyFromObject(fleet)] = fleet
}

func (in settings) ownersOf(cluster *clusterv1.Cluster) []metav1.OwnerReference {
	if !in.owners {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}}
}

func (s *State) classLabels(class Key) map[string]string {
	if class := s.Classes[class]; class != nil {
		return class.Labels
	}
	return nil
}

// collectGarbage is what Kubernetes itself does: what is being deleted and has no
// finalizer goes, and so does what had owners and has none any more.
func (s *State) collectGarbage() {
	maps.DeleteFunc(s.Classes, func(_ Key, class *clusterv1.ClusterClass) bool { return isGone(class) })
	maps.DeleteFunc(s.Clusters, func(_ Key, cluster *clusterv1.Cluster) bool { return isGone(cluster) })
	lives := map[any]bool{}
	for _, cluster := range s.Clusters {
		lives[cluster.UID] = true
	}
	for _, class := range s.Classes {
		lives[class.UID] = true
	}
	orphaned := func(object client.Object) bool {
		owners := object.GetOwnerReferences()
		return len(owners) > 0 && !slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool { return lives[owner.UID] })
	}
	maps.DeleteFunc(s.FleetClusters, func(_ Key, fleet *fleetv1.Cluster) bool { return orphaned(fleet) })
	maps.DeleteFunc(s.Groups, func(_ Key, group *fleetv1.ClusterGroup) bool { return orphaned(group) })
}

func report(cluster *clusterv1.Cluster, imported bool, reason string) {
	status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[imported]
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: importedCondition, Status: status, Reason: reason})
}

func isGone(object client.Object) bool {
	return !object.GetDeletionTimestamp().IsZero() && len(object.GetFinalizers()) == 0
}

func fleetKey(cluster *clusterv1.Cluster) Key {
	return Key{Namespace: cluster.Namespace, Name: cluster.Annotations[pinnedName]}
}

func has(object map[string]string, key string) bool {
	_, ok := object[key]
	return ok
}

// withoutLegacy drops CAAPF's finalizer. Muster never sets one.
func withoutLegacy(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(name string) bool { return name == legacyFinalizer })
}
