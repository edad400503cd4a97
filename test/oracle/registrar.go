package oracle

import (
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// convergeRegistrar computes what the registrar makes, if it runs.
func (s *State) convergeRegistrar(in settings) {
	if !s.AgentInitiated.Registrar {
		return
	}
	for _, cluster := range s.Clusters {
		if !isPaused(cluster) && cluster.DeletionTimestamp.IsZero() {
			s.convergeManifest(in, cluster)
		}
	}
}

func (s *State) convergeManifest(in settings, cluster *clusterv1.Cluster) {
	selected := in.selects(cluster, s.Namespaces[cluster.Namespace])
	fleet := s.fleetClusterOf(in, cluster)
	switch {
	case !selected && fleet != nil && isKnown(cluster, fleet):
		// It stays as it is. A credential without a Fleet Cluster is useless.
	case !selected || !s.isAgentInitiated(in, cluster, fleet):
		s.takeBack(cluster, fleet)
	default:
		s.handOut(cluster, fleet)
	}
}

// takeBack is for Clusters whose agent Fleet installs. An issued credential stays while its registration exists, so
// that a cluster that Fleet cannot reach keeps its agent.
func (s *State) takeBack(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) {
	if retained := s.AgentInitiated.Records[cluster.UID]; retained.Token != "" && s.isRegistered(retained.Registration) {
		return
	}
	meta.RemoveStatusCondition(&cluster.Status.Conditions, manifestCondition)
	s.empty(cluster)
	if fleet != nil {
		if current, _ := s.current(cluster, fleet); current != nil && !current.Status.Granted {
			return // It waits for Fleet.
		}
	}
	s.AgentInitiated.Rotated[cluster.UID] = s.AgentInitiated.Records[cluster.UID].Rotation // An unfinished rotation is pending again.
}

// empty removes the manifest from the Secret if the issued credential no longer works.
func (s *State) empty(cluster *clusterv1.Cluster) {
	retained := s.AgentInitiated.Records[cluster.UID]
	if retained.Token == "" {
		return
	}
	if secret := s.AgentInitiated.Manifests[ManifestOf(client.ObjectKeyFromObject(cluster))]; isManifestOf(secret, cluster) {
		secret.Data, secret.Annotations = nil, nil
	}
	s.AgentInitiated.Records[cluster.UID] = Record{Rotation: retained.Rotation}
}

func (s *State) isRegistered(uid types.UID) bool {
	for _, asked := range s.AgentInitiated.Registrations {
		if asked.UID == uid {
			return true
		}
	}
	return false
}

// handOut registers a Cluster, and writes its manifest once Fleet has granted the registration.
func (s *State) handOut(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) {
	if retained := s.AgentInitiated.Records[cluster.UID]; fleet != nil && fleet.Spec.KubeConfigSecret != "" && retained.Token != "" && s.isRegistered(retained.Registration) {
		return // Muster may not patch its Fleet Cluster; the issued credential still works.
	}
	reasons := s.hindrances(fleet)
	if len(reasons) == 0 {
		reasons = s.advance(cluster, fleet)
	}
	s.reportManifest(cluster, fleet, reasons...)
}

// advance takes the next step for a Cluster whose agent registers itself, and returns the reasons that its
// condition may have.
func (s *State) advance(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) []string {
	current, earlier := s.current(cluster, fleet)
	asked := cluster.Annotations[rotate]
	rotates := asked != "" && asked != s.AgentInitiated.Rotated[cluster.UID]
	secret := s.AgentInitiated.Manifests[ManifestOf(client.ObjectKeyFromObject(cluster))]
	isTaken := secret != nil && !isManifestOf(secret, cluster)
	switch {
	case current == nil && !rotates && s.AgentInitiated.CheckedIn[fleet.UID] && s.isRegisteredByOthers(fleet):
		s.empty(cluster)
		return []string{"AlreadyRegistered"} // Nothing else is needed.
	case current != nil && !current.Status.Granted && !rotates: // Some minutes later, Fleet may have refused it.
		return []string{"RegistrationNotGranted", "WaitingForFleet"}
	case s.AgentInitiated.Bundles[AgentBundle(client.ObjectKeyFromObject(fleet))] == nil:
		return []string{"WaitingForFleet"}
	case isTaken && (current == nil || rotates):
		return []string{"SecretConflict"}
	case current == nil || rotates && current.Name != "":
		s.register(fleet)
		if asked != "" {
			s.AgentInitiated.Rotated[cluster.UID] = asked
		}
		return []string{"WaitingForFleet"}
	}
	token := s.tokenOf(cluster, fleet, current)
	if token == "" { // For some minutes the registrar cannot know which.
		return []string{"CredentialLost", "WaitingForFleet"}
	}
	s.AgentInitiated.Records[cluster.UID] = Record{current.UID, token, s.AgentInitiated.Rotated[cluster.UID]}
	if isTaken {
		return []string{"SecretConflict"}
	}
	s.AgentInitiated.Manifests[ManifestOf(client.ObjectKeyFromObject(cluster))] = s.manifest(cluster, fleet, current, token)
	for _, key := range earlier { // Earlier registrations are revoked.
		delete(s.AgentInitiated.Registrations, key)
	}
	return []string{"ManifestReady"}
}

// hindrances returns the reasons why no agent can register now. The contract does not say which of several is
// reported first.
func (s *State) hindrances(fleet *fleetv1.Cluster) []string {
	var reasons []string
	if fleet == nil || !fleet.DeletionTimestamp.IsZero() || fleet.Status.Namespace == "" || fleet.Spec.KubeConfigSecret != "" {
		reasons = append(reasons, "WaitingForFleet")
	} else if key := client.ObjectKeyFromObject(fleet); fleet.Status.Namespace != FleetNamespace(key) || s.Holder(key) != key {
		reasons = append(reasons, "RegistrationConflict")
	}
	if s.AgentInitiated.Server == "" {
		reasons = append(reasons, "FleetNotConfigured")
	}
	return reasons
}

// isRegisteredByOthers reports whether a registration that Muster did not make has a credential of the Fleet
// Cluster.
func (s *State) isRegisteredByOthers(fleet *fleetv1.Cluster) bool {
	_, others := s.registrationsOf(fleet)
	return slices.ContainsFunc(others, func(key Key) bool {
		other := s.AgentInitiated.Registrations[key]
		return other.Status.Granted && other.Spec.ClientID == fleet.Spec.ClientID
	})
}

// current returns Muster's last registration with the clientID of a Fleet Cluster, and the earlier ones: Muster's
// own, and those of other clients with another clientID.
func (s *State) current(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) (current *fleetv1.ClusterRegistration, earlier []Key) {
	ours, others := s.registrationsOf(fleet)
	isOfIts := func(key Key) bool { return s.AgentInitiated.Registrations[key].Spec.ClientID == fleet.Spec.ClientID }
	isGranted := func(key Key) bool { return s.AgentInitiated.Registrations[key].Status.Granted }
	// A registration that waits for its grant is the last, unless the annotation no longer asks for another credential.
	last := slices.IndexFunc(ours, func(key Key) bool { return isOfIts(key) && isGranted(key) == (cluster.Annotations[rotate] == "") })
	if last < 0 {
		last = slices.IndexFunc(ours, isOfIts)
	}
	if last >= 0 {
		current = s.AgentInitiated.Registrations[ours[last]]
		ours = slices.Delete(ours, last, last+1)
	}
	others = slices.DeleteFunc(others, func(key Key) bool { return isOfIts(key) || !isGranted(key) })
	return current, append(ours, others...)
}

// register makes a registration that has no name yet. Its owner is the Fleet Cluster. It belongs to no registration
// token, and has no labels for the cluster.
func (s *State) register(fleet *fleetv1.Cluster) {
	asked := &fleetv1.ClusterRegistration{}
	asked.Namespace, asked.Labels = fleet.Namespace, map[string]string{managedBy: "muster"}
	asked.OwnerReferences = []metav1.OwnerReference{{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: fleet.Name, UID: fleet.UID}}
	asked.Spec.ClientID, asked.Spec.ClientRandom = fleet.Spec.ClientID, Drawn
	s.AgentInitiated.Registrations[Key{Namespace: fleet.Namespace, Name: "new of " + fleet.Name}] = asked
}

// tokenOf returns the credential of a registration: the issued one, or the one that Fleet has left, if that is for
// this Fleet Cluster.
func (s *State) tokenOf(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, current *fleetv1.ClusterRegistration) string {
	if retained := s.AgentInitiated.Records[cluster.UID]; retained.Token != "" && retained.Registration == current.UID {
		return retained.Token
	}
	if left := s.AgentInitiated.Credentials[CredentialName(current)]; left != nil &&
		string(left.Data["clusterNamespace"]) == fleet.Namespace && string(left.Data["clusterName"]) == fleet.Name &&
		string(left.Data["deploymentNamespace"]) == fleet.Status.Namespace {
		return string(left.Data["token"])
	}
	return ""
}

func (s *State) manifest(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, current *fleetv1.ClusterRegistration, token string) *corev1.Secret {
	secret := &corev1.Secret{Type: manifestType}
	secret.Namespace, secret.Name = cluster.Namespace, cluster.Name+"-fleet-agent"
	secret.Labels = map[string]string{managedBy: "muster", clusterv1.ClusterNameLabel: cluster.Name} // For clusterctl move.
	secret.Annotations = map[string]string{registered: string(current.UID)}
	secret.OwnerReferences = settings{owners: true}.ownersOf(cluster)
	secret.Data = map[string][]byte{
		"token": []byte(token), "manifest": manifestText(s.AgentInitiated.Server, fleet, s.AgentInitiated.Bundles[AgentBundle(client.ObjectKeyFromObject(fleet))], token),
	}
	return secret
}

// reportManifest writes the registrar's condition with any of the reasons. If the Fleet Cluster is inherited, an
// agent that checked in before the manifest existed may be the earlier Cluster's, unless the Cluster is in Fleet already.
func (s *State) reportManifest(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, reasons ...string) {
	status := metav1.ConditionFalse
	if reasons[0] == "ManifestReady" {
		status = metav1.ConditionTrue
		isKnown := meta.IsStatusConditionTrue(cluster.Status.Conditions, manifestCondition) || meta.IsStatusConditionTrue(cluster.Status.Conditions, importedCondition)
		if isInherited(cluster, fleet) && !isKnown {
			delete(s.AgentInitiated.CheckedIn, fleet.UID)
		}
	}
	slices.Sort(reasons)
	reason := strings.Join(slices.Compact(reasons), orElse)
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: manifestCondition, Status: status, Reason: reason})
}
