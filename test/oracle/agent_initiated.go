package oracle

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// AgentInitiated is what there is for Clusters whose agents register themselves: what Fleet gives, and what the
// registrar makes of it.
type AgentInitiated struct {
	// Registrar means that the optional component runs. Without it, nothing of this changes.
	Registrar bool
	// Server is the address in Fleet's settings at which agents reach Fleet; "" if there is none.
	Server string
	// Bundles are Fleet's own, with its agents; Credentials what Fleet has left, by name.
	Bundles     map[Key]*fleetv1.Bundle
	Credentials map[string]*corev1.Secret

	Registrations map[Key]*fleetv1.ClusterRegistration
	// Manifests are the Secrets that have the name of a manifest, whoever made them.
	Manifests map[Key]*corev1.Secret

	// CheckedIn are the Fleet Clusters whose agent has checked in, for the Cluster that has them
	// now; Rotated is, by Cluster, the value of the annotation that was followed last, and
	// Records what was issued.
	CheckedIn map[types.UID]bool
	Rotated   map[types.UID]string
	Records   map[types.UID]Record

	// used are the clientIDs that were there before.
	used map[string]bool
}

// Record is what the registrar remembers of a Cluster: the credential that was issued, the
// registration that it is of, and for which value of the annotation.
type Record struct {
	Registration    types.UID
	Token, Rotation string
}

func newAgentInitiated() AgentInitiated {
	return AgentInitiated{
		Bundles: map[Key]*fleetv1.Bundle{}, Credentials: map[string]*corev1.Secret{},
		Registrations: map[Key]*fleetv1.ClusterRegistration{}, Manifests: map[Key]*corev1.Secret{},
		CheckedIn: map[types.UID]bool{}, Rotated: map[types.UID]string{}, Records: map[types.UID]Record{}, used: map[string]bool{},
	}
}

func (c AgentInitiated) copy() AgentInitiated {
	c.Bundles, c.Credentials = copyMap(c.Bundles), copyMap(c.Credentials)
	c.Registrations, c.Manifests = copyMap(c.Registrations), copyMap(c.Manifests)
	c.CheckedIn, c.Rotated, c.used = maps.Clone(c.CheckedIn), maps.Clone(c.Rotated), maps.Clone(c.used)
	c.Records = maps.Clone(c.Records)
	return c
}

const (
	registration      = domain + "/registration"
	rotate            = domain + "/rotate-agent-credential"
	registered        = domain + "/registered"
	manifestType      = domain + "/agent-manifest"
	manifestCondition = "FleetAgentManifestReady"

	// Drawn stands for a clientID that is yet to be drawn.
	Drawn = "to be drawn"
	// A clientID has at least 128 random bits, which 26 of 32 letters hold; one that
	// somebody else has drawn is taken if it is not plainly to be guessed.
	drawnLength, leastLength = 26, 16
	// orElse separates the reasons of which any is right.
	orElse = " or "
)

// isAgentInitiated: the agent of a selected Cluster is to call. The annotation has the last word.
func (in settings) isAgentInitiated(cluster *clusterv1.Cluster) bool {
	switch cluster.Annotations[registration] {
	case "agent":
		return true
	case "manager":
		return false
	}
	return in.agentInitiated && in.agentSelector.Matches(stampedLabels(cluster))
}

// isAgentInitiated: its agent is to register itself, or, without a FleetAddonConfig, has checked in for this Cluster.
func (s *State) isAgentInitiated(in settings, cluster *clusterv1.Cluster, its *fleetv1.Cluster) bool {
	retained := in.missing && cluster.Annotations[registration] != "manager" && its != nil && its.Spec.KubeConfigSecret == "" &&
		(s.AgentInitiated.CheckedIn[its.UID] || !its.Status.Agent.LastSeen.IsZero())
	return in.isAgentInitiated(cluster) || retained
}

// mayBeMade: there is something to import, or to wait for. Where the agent registers itself, this does
// not take an initialized control plane, but what a topology is to refer to: without these
// values every bundle that reads them would stop.
func (in settings) mayBeMade(cluster *clusterv1.Cluster) bool {
	if in.isAgentInitiated(cluster) {
		refers := cluster.Spec.ControlPlaneRef.Name != "" && cluster.Spec.InfrastructureRef.Name != ""
		return classOf(cluster).Name == "" || refers
	}
	return ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// waitsToTurn: the Cluster's agent was to register itself, and Fleet cannot install one yet.
func (s *State) waitsToTurn(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) bool {
	return fleet != nil && fleet.UID != "" && fleet.Spec.KubeConfigSecret == "" &&
		!ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// clientIDFor returns the clientID that a Fleet Cluster of the Cluster's is to have.
func (s *State) clientIDFor(agentInitiated bool, fleet *fleetv1.Cluster) string {
	id := fleet.Spec.ClientID
	if !agentInitiated || len(id) >= leastLength || id == Drawn || id != "" && s.AgentInitiated.CheckedIn[fleet.UID] {
		return id // Also when it turns to the manager: by another, its agent would be cut off.
	}
	return Drawn
}

// cutOff has whoever called for the Cluster that had the Fleet Cluster before not call for this
// one: it gets a clientID of its own. One that was handed over by its maker keeps his, if that
// is not plainly to be guessed.
func (s *State) cutOff(in settings, cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, anothers bool) {
	if in.isAgentInitiated(cluster) && (anothers || len(fleet.Spec.ClientID) < leastLength) {
		fleet.Spec.ClientID = Drawn
		delete(s.AgentInitiated.CheckedIn, fleet.UID)
	}
}

// reasonsOfImported are those of a Cluster that is in Fleet, or will be once its agent has checked in.
func (s *State) reasonsOfImported(agentInitiated bool, cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, resolved bool) string {
	reason := map[bool]string{true: "Imported", false: "TemplateValuesUnresolved"}[resolved]
	waits := map[bool]string{true: "RegistrarMissing", false: "WaitingForAgent"}[agentInitiated && !s.AgentInitiated.Registrar]
	switch {
	case s.isIn(cluster, fleet):
		return reason
	case !agentInitiated && s.waitsToTurn(cluster, fleet):
		return "WaitingForControlPlane"
	case resolved:
		return waits
	}
	return waits + orElse + reason
}

// isIn: the Cluster is in Fleet, and if its agent was to register itself it has. Of a Fleet Cluster that
// was there before the Cluster, the agent of the earlier one may call until the manifest of this
// one is there.
func (s *State) isIn(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) bool {
	if fleet == nil || fleet.Spec.KubeConfigSecret != "" {
		return fleet != nil
	}
	reported := meta.FindStatusCondition(cluster.Status.Conditions, manifestCondition)
	isItsOwn := !isInherited(cluster, fleet) || meta.IsStatusConditionTrue(cluster.Status.Conditions, importedCondition) ||
		reported != nil && (reported.Reason == "ManifestReady" || reported.Reason == "AlreadyRegistered")
	return s.AgentInitiated.CheckedIn[fleet.UID] && isItsOwn
}

// isInherited: the Fleet Cluster was there before the Cluster was.
func isInherited(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) bool {
	return fleet.CreationTimestamp.Before(&cluster.CreationTimestamp)
}

// CredentialName returns the name under which Fleet leaves the credential of a registration.
func CredentialName(of *fleetv1.ClusterRegistration) string {
	sum := sha256.Sum256([]byte(of.Spec.ClientID + of.Spec.ClientRandom))
	return ("c-" + hex.EncodeToString(sum[:]))[:63]
}

const manifestSuffix = "-fleet-agent"

// ManifestOf names the Secret with the manifest of a Cluster.
func ManifestOf(cluster Key) Key {
	return Key{Namespace: cluster.Namespace, Name: cluster.Name + manifestSuffix}
}

// isManifestOf: the Secret is Muster's, for this Cluster.
func isManifestOf(secret *corev1.Secret, cluster *clusterv1.Cluster) bool {
	return secret != nil && secret.Type == manifestType && len(secret.OwnerReferences) == 1 && isOwner(secret, cluster.UID)
}

// registrationsOf returns the keys of what was registered for a Fleet Cluster: what
// Muster registered, and what others did.
func (s *State) registrationsOf(fleet *fleetv1.Cluster) (ours, others []Key) {
	for _, key := range sorted(s.AgentInitiated.Registrations) {
		asked := s.AgentInitiated.Registrations[key]
		switch {
		case key.Namespace != fleet.Namespace || !isOwner(asked, fleet.UID):
		case asked.Labels[managedBy] == "muster":
			ours = append(ours, key)
		default:
			others = append(others, key)
		}
	}
	return ours, others
}

// noteUsed notes the clientIDs that there are.
func (s *State) noteUsed() {
	for _, fleet := range s.FleetClusters {
		s.AgentInitiated.used[fleet.Spec.ClientID] = true
	}
	for _, asked := range s.AgentInitiated.Registrations {
		s.AgentInitiated.used[asked.Spec.ClientID] = true
	}
}
