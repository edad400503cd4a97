package oracle

import (
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// settleRegistrar is what the registrar makes, where it runs.
func (s *State) settleRegistrar(in settings) {
	if !s.Calling.Registrar {
		return
	}
	for _, cluster := range s.Clusters {
		if !isPaused(cluster) && cluster.DeletionTimestamp.IsZero() {
			s.settleManifest(in, cluster)
		}
	}
}

func (s *State) settleManifest(in settings, cluster *clusterv1.Cluster) {
	selected := in.selects(cluster, s.Namespaces[cluster.Namespace])
	fleet := s.fleetClusterOf(in, cluster)
	switch {
	case !selected && (isClaimed(cluster) || fleet != nil && isOurs(fleet)):
		// Kept, frozen as it is.
	case !selected || !in.calls(cluster):
		s.takeBack(cluster, fleet)
	default:
		s.handOut(cluster, fleet)
	}
}

// takeBack leaves no manifest where Fleet itself installs the agent. What was registered
// goes on until that one is, so that a cluster that cannot be reached keeps its agent.
func (s *State) takeBack(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) {
	meta.RemoveStatusCondition(&cluster.Status.Conditions, manifestCondition)
	if key := ManifestOf(client.ObjectKeyFromObject(cluster)); isManifestOf(s.Calling.Manifests[key], cluster) {
		delete(s.Calling.Manifests, key)
	}
	if fleet == nil {
		return
	}
	ours, others := s.registrationsOf(fleet)
	if slices.ContainsFunc(others, func(key Key) bool {
		other := s.Calling.Registrations[key]
		return other.Status.Granted && other.Spec.ClientID == fleet.Spec.ClientID
	}) {
		s.revoke(ours...)
	}
}

// handOut registers a Cluster, and once that is granted writes its manifest.
func (s *State) handOut(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) {
	if hindrances := s.hindrances(cluster, fleet); len(hindrances) > 0 {
		reportManifest(cluster, strings.Join(hindrances, orElse))
		return
	}
	current, earlier := s.current(fleet)
	asked := cluster.Annotations[rotate]
	rotates := asked != "" && asked != s.Calling.Rotated[cluster.UID]
	switch {
	case current == nil && !rotates && s.Calling.Called[fleet.UID] && !s.isOurs(earlier):
		reportManifest(cluster, "AlreadyRegistered")
		return
	case current == nil || rotates && current.Name != "":
		s.register(fleet)
		s.follow(cluster, asked)
		reportManifest(cluster, "WaitingForFleet")
		return
	case !current.Status.Granted:
		reportManifest(cluster, "WaitingForFleet")
		return
	}
	token := s.tokenOf(cluster, fleet, current)
	if token == "" { // For some minutes nobody can tell.
		reportManifest(cluster, "CredentialLost"+orElse+"WaitingForFleet")
		return
	}
	s.Calling.Manifests[ManifestOf(client.ObjectKeyFromObject(cluster))] = s.manifest(cluster, fleet, current, token)
	reportManifest(cluster, "ManifestReady")
	s.revoke(earlier...)
}

// hindrances are the reasons for which there can be no manifest now. Which of several is
// told first, nothing says.
func (s *State) hindrances(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) []string {
	var reasons []string
	secret := s.Calling.Manifests[ManifestOf(client.ObjectKeyFromObject(cluster))]
	if secret != nil && !isManifestOf(secret, cluster) {
		reasons = append(reasons, "SecretConflict")
	}
	if s.Calling.Server == "" {
		reasons = append(reasons, "FleetNotConfigured")
	}
	switch {
	case fleet == nil || !fleet.DeletionTimestamp.IsZero() || fleet.Status.Namespace == "",
		fleet.Spec.KubeConfigSecret != "" || len(fleet.Spec.ClientID) < leastLength && fleet.Spec.ClientID != Drawn && !s.Calling.Called[fleet.UID],
		s.Calling.Bundles[AgentBundle(client.ObjectKeyFromObject(fleet))] == nil:
		reasons = append(reasons, "WaitingForFleet")
	case fleet.Status.Namespace != FleetNamespace(client.ObjectKeyFromObject(fleet)):
		reasons = append(reasons, "RegistrationConflict")
	}
	return reasons
}

// current returns Muster's own registration of the clientID that a Fleet Cluster has, the
// last one, and what was registered earlier: by Muster, and by whomever under another clientID.
func (s *State) current(fleet *fleetv1.Cluster) (current *fleetv1.ClusterRegistration, earlier []Key) {
	ours, others := s.registrationsOf(fleet)
	slices.SortStableFunc(ours, func(a, b Key) int { // What waits to be granted is the last.
		waits := func(key Key) int {
			return map[bool]int{true: 0, false: 1}[!s.Calling.Registrations[key].Status.Granted]
		}
		return waits(a) - waits(b)
	})
	for _, key := range ours {
		if asked := s.Calling.Registrations[key]; current == nil && asked.Spec.ClientID == fleet.Spec.ClientID {
			current = asked
			continue
		}
		earlier = append(earlier, key)
	}
	for _, key := range others {
		if s.Calling.Registrations[key].Spec.ClientID != fleet.Spec.ClientID {
			earlier = append(earlier, key)
		}
	}
	return current, earlier
}

// isOurs: one of the registrations is Muster's.
func (s *State) isOurs(keys []Key) bool {
	return slices.ContainsFunc(keys, func(key Key) bool { return isOurs(s.Calling.Registrations[key]) })
}

// register makes a registration that is yet to get a name. It goes with the Fleet Cluster, no
// token leads to it, and it says nothing of labels.
func (s *State) register(fleet *fleetv1.Cluster) {
	asked := &fleetv1.ClusterRegistration{}
	asked.Namespace, asked.Labels = fleet.Namespace, map[string]string{managedBy: "muster"}
	asked.OwnerReferences = []metav1.OwnerReference{{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: fleet.Name, UID: fleet.UID}}
	asked.Spec.ClientID, asked.Spec.ClientRandom = fleet.Spec.ClientID, Drawn
	s.Calling.Registrations[Key{Namespace: fleet.Namespace, Name: "new of " + fleet.Name}] = asked
}

// follow notes which value of the annotation a credential is of.
func (s *State) follow(cluster *clusterv1.Cluster, asked string) {
	if asked != "" {
		s.Calling.Rotated[cluster.UID] = asked
	}
}

func (s *State) revoke(keys ...Key) {
	for _, key := range keys {
		delete(s.Calling.Registrations, key)
	}
}

// tokenOf returns the credential of a registration: as Fleet has left it, if it is for this
// Fleet Cluster, or as it was handed out.
func (s *State) tokenOf(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, current *fleetv1.ClusterRegistration) string {
	if left := s.Calling.Credentials[CredentialName(current)]; left != nil &&
		string(left.Data["clusterNamespace"]) == fleet.Namespace && string(left.Data["clusterName"]) == fleet.Name &&
		string(left.Data["deploymentNamespace"]) == fleet.Status.Namespace {
		return string(left.Data["token"])
	}
	if secret := s.Calling.Manifests[ManifestOf(client.ObjectKeyFromObject(cluster))]; secret != nil && secret.Annotations[registered] == string(current.UID) {
		return string(secret.Data["token"])
	}
	return ""
}

func (s *State) manifest(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, current *fleetv1.ClusterRegistration, token string) *corev1.Secret {
	secret := &corev1.Secret{Type: manifestType}
	if old := s.Calling.Manifests[ManifestOf(client.ObjectKeyFromObject(cluster))]; old != nil {
		secret.ObjectMeta = *old.ObjectMeta.DeepCopy()
	}
	secret.Namespace, secret.Name = cluster.Namespace, cluster.Name+"-fleet-agent"
	secret.Labels = map[string]string{managedBy: "muster"}
	secret.Annotations = map[string]string{registered: string(current.UID)}
	secret.OwnerReferences = settings{owners: true}.ownersOf(cluster)
	secret.Data = map[string][]byte{
		"token": []byte(token), "manifest": manifestText(s.Calling.Server, fleet, s.Calling.Bundles[AgentBundle(client.ObjectKeyFromObject(fleet))], token),
	}
	return secret
}

// reportManifest is the registrar's word on a Cluster.
func reportManifest(cluster *clusterv1.Cluster, reason string) {
	status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[reason == "ManifestReady"]
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: manifestCondition, Status: status, Reason: reason})
}
