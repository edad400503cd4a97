package oracle

import (
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Converge returns the state in which Muster has nothing left to do.
func Converge(was State) State {
	s := was.Copy()
	s.noteUsed()
	for range 2 { // The registrar's report on an agent that has checked in matters to the syncer.
		s.converge(was.settings())
		s.playNamespaces()
	}
	s.collectGarbage()
	s.convergeHelm(was.settings())
	return s
}

func (s *State) converge(in settings) {
	for _, class := range s.Classes {
		class.Finalizers = withoutLegacy(class.Finalizers)
	}
	for _, cluster := range s.Clusters {
		cluster.Finalizers = withoutLegacy(cluster.Finalizers)
	}
	s.collectGarbage()
	for _, key := range sorted(s.Clusters) {
		if in.enabled {
			s.convergeCluster(in, s.Clusters[key])
		} else {
			s.holdCluster(in, s.Clusters[key])
		}
	}
	s.releaseProxy(in)
	if in.classEnabled {
		s.convergeClassGroups(in)
	}
	if in.enabled {
		s.convergeTargets(in)
		s.convergeNamespaces(in)
		s.convergeRegistrar(in)
	}
}

// Admitted returns a Cluster as the webhook answers its creation: with a pin if it is selected, and otherwise
// without one, even if its author set one. The webhook ignores existing Fleet Clusters here, and does not pin a
// name that is not generated yet.
func Admitted(s State, requested *clusterv1.Cluster) *clusterv1.Cluster {
	cluster, in := requested.DeepCopy(), s.settings()
	stampClass(cluster)
	if in.unknown { // A pin that it brings stays, and it gets no other.
		return cluster
	}
	delete(cluster.Annotations, ownedBy) // Only Muster may claim it; its own name may stay.
	if !s.isItsName(cluster) {
		delete(cluster.Annotations, pinnedName)
	}
	if cluster.Name != "" && in.selects(cluster, s.Namespaces[cluster.Namespace]) {
		(&State{}).pin(in, cluster)
	} else {
		unpin(cluster)
	}
	return cluster
}

// isItsName reports whether the pin that a new Cluster brings is its own: it contains the Cluster's name, or names a
// Fleet Cluster that was made from a Cluster of that name. No run has a name that is cut.
func (s *State) isItsName(cluster *clusterv1.Cluster) bool {
	if strings.Contains(cluster.Annotations[pinnedName], strings.ReplaceAll(cluster.Name, ".", "-")) {
		return true
	}
	fleet := s.FleetClusters[fleetKey(cluster)]
	if fleet == nil {
		return false
	}
	from := fleet.Annotations[importedFrom]
	if owners := clusterOwners(fleet); len(owners) > 0 {
		return slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool { return owner.Name == cluster.Name })
	}
	return from == cluster.Name
}

// holdCluster applies while imports are disabled. It changes nothing except the owner reference, which goes while
// clusterctl may move the Cluster.
func (s *State) holdCluster(in settings, cluster *clusterv1.Cluster) {
	if fleet := s.fleetClusterOf(in, cluster); fleet != nil && isKnown(cluster, fleet) {
		s.convergeOwner(in, cluster, fleet)
	}
}

// convergeOwner removes the owner reference while spec.paused is true, so that clusterctl move does not undeploy
// the cluster's bundles, and restores it afterwards.
func (s *State) convergeOwner(in settings, cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) {
	switch moves := ptr.Deref(cluster.Spec.Paused, false); {
	case fleet == nil:
	case isPaused(cluster):
		// This also applies without an owner reference: a released Fleet Cluster keeps its group and mapping.
		if moves && cluster.DeletionTimestamp.IsZero() && fleet.DeletionTimestamp.IsZero() {
			if isOwner(fleet, cluster.UID) || fleet.Annotations[released] != "true" {
				fleet.Annotations = spared(fleet.Annotations)
			}
			fleet.OwnerReferences = withoutOwner(fleet, cluster.UID)
			fleet.Annotations = set(fleet.Annotations, released, "true")
			noteOrigin(fleet, cluster)
		}
	case in.unknown: // Whether it is to have an owner, too.
	case fleet.Annotations[released] != "":
		delete(fleet.Annotations, released)
		if in.owners {
			fleet.OwnerReferences = in.ownersOf(cluster)
			unspare(fleet, cluster)
		}
		noteOrigin(fleet, cluster)
	}
}

// convergeCluster stamps a Cluster and makes its Fleet Cluster.
func (s *State) convergeCluster(in settings, cluster *clusterv1.Cluster) {
	selected := in.selects(cluster, s.Namespaces[cluster.Namespace])
	fleet := s.fleetClusterOf(in, cluster)
	if !selected && !isKnown(cluster, fleet) {
		fleet = nil // Not ours. Objects that CAAPF made are.
	}

	s.convergeOwner(in, cluster, fleet)
	switch deleting := !cluster.DeletionTimestamp.IsZero(); {
	case deleting: // Then only the owner matters.
	case isPaused(cluster): // Muster writes nothing else.
		if isClaimed(cluster) || selected || fleet != nil {
			report(cluster, s.isIn(cluster, fleet), "Paused")
		} else {
			report(cluster, false, "")
		}
	default:
		stampClass(cluster)
		var imported bool
		var reason string
		if selected {
			imported, reason = s.convergeSelected(in, cluster, fleet)
		} else {
			imported, reason = s.convergeDeselected(in, cluster, fleet)
		}
		report(cluster, imported, reason)
	}
}

func (s *State) convergeDeselected(in settings, cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) (imported bool, reason string) {
	switch {
	case !isClaimed(cluster) && fleet == nil: // Not ours.
		return false, ""
	case in.deletesDeselected:
		s.withdraw(in, cluster, fleet)
		return false, ""
	case fleet != nil && (isClaimed(cluster) || fleet.Labels[managedBy] == "muster"):
		s.claim(in, cluster) // It stays as it is, and the pin follows its name.
	}
	return s.isIn(cluster, fleet), "Deselected"
}

// convergeSelected makes the Fleet Cluster of a selected Cluster, if an existing object of that name belongs to the
// Cluster or may become its own.
func (s *State) convergeSelected(in settings, cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) (imported bool, reason string) {
	if fleet == nil && !isClaimed(cluster) && s.isPromised(in, cluster) {
		return false, "NameConflict"
	}
	s.claim(in, cluster)
	fleet = s.FleetClusters[fleetKey(cluster)]
	is := own // Also if it does not exist yet.
	if fleet != nil {
		is = s.relationOf(in, fleet, cluster)
	}
	switch {
	case s.isGroupTaken(in, cluster):
		// Its bundles would be targeted through the group of another class.
		return is == own && s.isIn(cluster, fleet), "NameConflict"
	case is == foreign:
		return false, "NameConflict"
	case s.Holder(fleetKey(cluster)) != fleetKey(cluster):
		return s.isIn(cluster, fleet), s.reasonsOfShared(in, cluster)
	case is == orphan, fleet != nil && !fleet.DeletionTimestamp.IsZero():
		return false, "FleetClusterDeleting"
	case fleet == nil && in.isAgentInitiated(cluster) && s.FleetNamespaces[FleetNamespace(fleetKey(cluster))].Name != "":
		return false, "FleetClusterDeleting" // Fleet has yet to remove the namespace of an earlier one.
	case (fleet == nil || is == heirloom) && !in.mayBeMade(cluster):
		return false, "WaitingForControlPlane"
	}
	values, resolved := s.templateValues(in, cluster)
	if !resolved && (fleet == nil || is == heirloom) { // A namesake's values are not its own.
		return false, "TemplateValuesUnresolved"
	}
	agentInitiated := s.isAgentInitiated(in, cluster, map[bool]*fleetv1.Cluster{true: fleet}[is == own])
	if is == heirloom && !agentInitiated { // Otherwise Fleet has no agent to deploy again.
		fleet.Spec.RedeployAgentGeneration++
	}
	if is == heirloom || is == handed {
		in.claim(fleet, cluster)
		s.cutOff(in, cluster, fleet, is == heirloom)
	}
	if fleet == nil || in.patch {
		fleet = s.writeFleetCluster(in, agentInitiated, cluster, fleet, values)
	}
	if s.hasForeignTarget(in, cluster) {
		return s.isIn(cluster, fleet), "NameConflict"
	}
	return s.isIn(cluster, fleet), s.reasonsOfImported(agentInitiated, cluster, fleet, resolved)
}

// hasForeignTarget reports whether another client made the group or the mapping that the Cluster needs.
func (s *State) hasForeignTarget(in settings, cluster *clusterv1.Cluster) bool {
	isForeign := func(object client.Object) bool { return object.GetDeletionTimestamp().IsZero() && !isOurs(object) }
	used := use{cluster.Namespace, classOf(cluster)}
	if !used.crosses() {
		class, group := s.Classes[used.class], s.Groups[used.class]
		return in.classEnabled && class != nil && class.DeletionTimestamp.IsZero() && group != nil && isForeign(group)
	}
	group, mapping := s.Groups[used.group()], s.Mappings[used.mapping()]
	return in.classGroup && (group != nil && isForeign(group) || mapping != nil && isForeign(mapping))
}

// releaseProxy copies to each Cluster what Fleet reports about its bundles, in every state that has a Fleet
// Cluster.
func (s *State) releaseProxy(in settings) {
	for _, cluster := range s.Clusters {
		fleet := s.fleetClusterOf(in, cluster)
		retained := !in.enabled || !cluster.DeletionTimestamp.IsZero()
		switch {
		case retained && !isKnown(cluster, fleet): // Not ours.
		case in.unknown && fleet == nil: // It stays, too.
		case fleet != nil && (retained || meta.FindStatusCondition(cluster.Status.Conditions, importedCondition) != nil):
			meta.SetStatusCondition(&cluster.Status.Conditions, s.bundlesReadyOf(fleet))
		default:
			meta.RemoveStatusCondition(&cluster.Status.Conditions, bundlesCondition)
		}
	}
}

// bundlesReadyOf returns what Fleet reports, once the agent has reported and has its own Bundle.
func (s *State) bundlesReadyOf(fleet *fleetv1.Cluster) metav1.Condition {
	result := metav1.Condition{Type: bundlesCondition, Status: metav1.ConditionUnknown, Reason: "WaitingForFleet"}
	isSeen := !fleet.Status.Agent.LastSeen.IsZero() || s.AgentInitiated.CheckedIn[fleet.UID]
	if !isSeen || fleet.Status.Summary.DesiredReady == 0 {
		if result.Reason = "AgentNotSeen"; fleet.Status.Namespace == "" { // Muster says so after 5 s.
			result.Reason += orElse + "WaitingForFleet"
		}
		return result
	}
	for _, condition := range fleet.Status.Conditions {
		switch {
		case condition.Type != "Ready":
		case condition.Status == "True":
			result.Status, result.Reason = metav1.ConditionTrue, "BundlesReady"
		case condition.Status == "False":
			result.Status, result.Reason = metav1.ConditionFalse, "BundlesNotReady"
		}
	}
	return result
}

// isGroupTaken reports whether the namespace has a class whose group has the name that the group of the Cluster's
// class would have there.
func (s *State) isGroupTaken(in settings, cluster *clusterv1.Cluster) bool {
	used := use{cluster.Namespace, classOf(cluster)}
	return in.classGroup && used.crosses() && s.Classes[used.group()] != nil
}

// withdraw undoes an import: it removes everything that was made from the Cluster.
func (s *State) withdraw(in settings, cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) {
	if fleet != nil {
		delete(s.FleetClusters, client.ObjectKeyFromObject(fleet))
	}
	unpin(cluster)
	maps.DeleteFunc(s.FleetClusters, func(key Key, fleet *fleetv1.Cluster) bool {
		return key.Namespace == cluster.Namespace && isOurs(fleet) && s.relationOf(in, fleet, cluster) == own
	})
}

// stampClass sets the class labels on a Cluster. A Cluster without a class has none.
func stampClass(cluster *clusterv1.Cluster) {
	class := classOf(cluster)
	cluster.Labels = set(cluster.Labels, classLabel, labelValue(class.Name))
	cluster.Labels = set(cluster.Labels, classNsLabel, class.Namespace)
	cluster.Annotations = set(cluster.Annotations, fullClass, map[bool]string{true: class.Name}[labelValue(class.Name) != class.Name])
}

// claim pins a Cluster as the syncer does: until it has reported on a Cluster, a pin that is not its own counts for nothing.
func (s *State) claim(in settings, cluster *clusterv1.Cluster) {
	if meta.FindStatusCondition(cluster.Status.Conditions, importedCondition) == nil && !s.isItsName(cluster) {
		delete(cluster.Annotations, pinnedName)
	}
	s.pin(in, cluster)
}

// pin claims a selected Cluster. The name is that of the Fleet Cluster that is its own already, whatever the pin
// says; or else the name that it was created with; or else the name that naming gives.
func (s *State) pin(in settings, cluster *clusterv1.Cluster) {
	existing := s.preferred(in, cluster, s.hasOrigin(cluster))
	if existing == nil && !isClaimed(cluster) {
		existing = s.preferred(in, cluster, s.isOwn(in, cluster))
	}
	var name string
	switch {
	case existing != nil:
		name = existing.Name
	case isDNSLabel(cluster.Annotations[pinnedName]):
		name = cluster.Annotations[pinnedName]
	default:
		name = in.nameOf(cluster)
	}
	cluster.Annotations = set(cluster.Annotations, ownedBy, "fleet-addon-config")
	cluster.Annotations = set(cluster.Annotations, pinnedName, name)
}

func unpin(cluster *clusterv1.Cluster) {
	delete(cluster.Annotations, ownedBy)
	delete(cluster.Annotations, pinnedName)
}

// writeFleetCluster makes the Fleet Cluster. If a reference of the Cluster cannot be resolved, there are no values,
// and the last good ones stay.
func (s *State) writeFleetCluster(
	in settings, agentInitiated bool, cluster *clusterv1.Cluster, old *fleetv1.Cluster, values map[string]any,
) *fleetv1.Cluster {
	if old == nil {
		old = &fleetv1.Cluster{}
		old.Namespace, old.Name = cluster.Namespace, cluster.Annotations[pinnedName]
	}
	class := classOf(cluster)
	fleet := old.DeepCopy()
	// Labels come from the Cluster and its class, and the Cluster's win. The stamp is among the Cluster's.
	fleet.Labels = copied(s.classLabels(class), cluster.Labels)
	fleet.Labels[managedBy] = "muster"
	maps.Copy(fleet.Labels, othersIn(old.Labels))
	fleet.Annotations = copied(cluster.Annotations)
	fleet.Annotations[importedFrom] = cluster.Name
	if full := cluster.Annotations[fullClass]; full != "" {
		fleet.Annotations[fullClass] = full
	}
	maps.Copy(fleet.Annotations, othersIn(old.Annotations))
	if fleet.OwnerReferences = in.ownersOf(cluster); !in.owners {
		fleet.Annotations = spared(fleet.Annotations)
	}
	noteOrigin(fleet, cluster)
	fleet.Spec = fleetv1.ClusterSpec{
		ClientID: s.clientIDFor(agentInitiated, old),
		// Other clients increase this to redeploy the agent.
		RedeployAgentGeneration: old.Spec.RedeployAgentGeneration,
		KubeConfigSecret:        cluster.Name + "-kubeconfig",
		AgentNamespace:          in.agentNamespace,
		AgentTolerations:        in.tolerations,
		AgentEnvVars:            in.envVars,
		HostNetwork:             ptr.To(in.hostNetwork),
		TemplateValues:          old.Spec.TemplateValues,
	}
	if agentInitiated || s.waitsToTurn(cluster, old) {
		fleet.Spec.KubeConfigSecret = "" // Without it Fleet installs no agent.
	}
	if values != nil {
		fleet.Spec.TemplateValues = &fleetv1.GenericMap{Data: values}
	}
	s.FleetClusters[client.ObjectKeyFromObject(fleet)] = fleet
	return fleet
}

// spared adds what makes Argo CD spare an object without an owner.
func spared(annotations map[string]string) map[string]string {
	for key, value := range optOuts {
		annotations = set(annotations, key, value)
	}
	return annotations
}

// unspare gives a Fleet Cluster that has its owner back the Cluster's own annotations instead.
func unspare(fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) {
	for key, value := range optOuts {
		if fleet.Annotations[key] == value {
			fleet.Annotations = set(fleet.Annotations, key, cluster.Annotations[key])
		}
	}
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

// collectGarbage plays Kubernetes: an object that is being deleted and has no finalizer goes, and so does an object
// whose owners are all gone.
func (s *State) collectGarbage() {
	maps.DeleteFunc(s.Classes, isGone)
	maps.DeleteFunc(s.Clusters, isGone)
	if s.GarbageRemains {
		return
	}
	lives := map[types.UID]bool{}
	for _, cluster := range s.Clusters {
		lives[cluster.UID] = true
	}
	for _, class := range s.Classes {
		lives[class.UID] = true
	}
	collect(s.FleetClusters, lives)
	collect(s.Groups, lives)
	for _, fleet := range s.FleetClusters {
		lives[fleet.UID] = true
	}
	collect(s.AgentInitiated.Registrations, lives)
	collect(s.AgentInitiated.Manifests, lives)
}

func collect[T client.Object](objects map[Key]T, lives map[types.UID]bool) {
	maps.DeleteFunc(objects, func(_ Key, object T) bool {
		owners := object.GetOwnerReferences()
		return len(owners) > 0 && !slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool { return lives[owner.UID] })
	})
}

// report writes the condition FleetImported; an empty reason removes it.
func report(cluster *clusterv1.Cluster, imported bool, reason string) {
	status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[imported]
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: importedCondition, Status: status, Reason: reason})
	if reason == "" {
		meta.RemoveStatusCondition(&cluster.Status.Conditions, importedCondition)
	}
}

func isGone[T client.Object](_ Key, object T) bool {
	return !object.GetDeletionTimestamp().IsZero() && len(object.GetFinalizers()) == 0
}

// isPaused reports whether the spec or the annotation pauses the Cluster.
func isPaused(cluster *clusterv1.Cluster) bool {
	return ptr.Deref(cluster.Spec.Paused, false) || has(cluster.Annotations, pauseAnnotation)
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
