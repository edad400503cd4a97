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

// AgentInitiated is the part of the state that is about Clusters whose agents register themselves: what Fleet
// provides, and what the registrar makes from it.
type AgentInitiated struct {
	// Registrar means that the optional component runs. Without it, the rest of this struct does not change.
	Registrar bool
	// Server is the address at which agents reach Fleet, from Fleet's settings; "" if there is none.
	Server string
	// Bundles are Fleet's own Bundles with its agents. Credentials are the Secrets that Fleet has left, by name.
	Bundles     map[Key]*fleetv1.Bundle
	Credentials map[string]*corev1.Secret

	Registrations map[Key]*fleetv1.ClusterRegistration
	// Manifests are the Secrets that have the name of a manifest, also those that Muster did not make.
	Manifests map[Key]*corev1.Secret

	// CheckedIn holds the Fleet Clusters whose agent has checked in for their present Cluster. By Cluster, Rotated
	// holds the value of the annotation that the registrar acted on last, and Records the issued credential.
	CheckedIn map[types.UID]bool
	Rotated   map[types.UID]string
	Records   map[types.UID]Record

	// used holds the clientIDs that existed before.
	used map[string]bool
}

// Record is what the registrar remembers of a Cluster: the issued credential, its registration, and the value of
// the annotation that it was issued for.
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

	// Drawn stands for a clientID that Muster has yet to draw.
	Drawn = "to be drawn"
	// A clientID has at least 128 random bits, which take 26 of 32 letters. Muster keeps a clientID that another
	// client has set if it is not too short to be secret.
	drawnLength, leastLength = 26, 16
	// orElse separates reasons of which any is right.
	orElse = " or "
)

// isAgentInitiated reports whether the agent of a selected Cluster must register itself. The annotation takes
// precedence.
func (in settings) isAgentInitiated(cluster *clusterv1.Cluster) bool {
	switch cluster.Annotations[registration] {
	case "agent":
		return true
	case "manager":
		return false
	}
	return in.agentInitiated && in.agentSelector.Matches(stampedLabels(cluster))
}

// isAgentInitiated reports whether the agent must register itself or, without a FleetAddonConfig, has checked in
// for this Cluster.
func (s *State) isAgentInitiated(in settings, cluster *clusterv1.Cluster, its *fleetv1.Cluster) bool {
	retained := in.missing && cluster.Annotations[registration] != "manager" && its != nil && its.Spec.KubeConfigSecret == "" &&
		(s.AgentInitiated.CheckedIn[its.UID] || !its.Status.Agent.LastSeen.IsZero())
	return in.isAgentInitiated(cluster) || retained
}

// mayBeMade reports whether Muster may make the Fleet Cluster. If Fleet installs the agent, the control plane must
// be initialized. If the agent registers itself, a Cluster with a topology must have its references instead:
// without their values every bundle that reads them would stop.
func (in settings) mayBeMade(cluster *clusterv1.Cluster) bool {
	if in.isAgentInitiated(cluster) {
		refers := cluster.Spec.ControlPlaneRef.Name != "" && cluster.Spec.InfrastructureRef.Name != ""
		return classOf(cluster).Name == "" || refers
	}
	return ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// waitsToTurn reports whether the Cluster's agent was to register itself before, and Fleet cannot install one yet.
func (s *State) waitsToTurn(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) bool {
	return fleet != nil && fleet.UID != "" && fleet.Spec.KubeConfigSecret == "" &&
		!ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// clientIDFor returns the clientID that a Fleet Cluster must have.
func (s *State) clientIDFor(agentInitiated bool, fleet *fleetv1.Cluster) string {
	id := fleet.Spec.ClientID
	if !agentInitiated || len(id) >= leastLength || id == Drawn || id != "" && s.AgentInitiated.CheckedIn[fleet.UID] {
		return id // It stays even if Fleet installs the agent now: another one would cut the agent off.
	}
	return Drawn
}

// cutOff gives a Fleet Cluster a new clientID, so that the agent of its previous Cluster cannot check in for this
// one. A Fleet Cluster that its maker handed over keeps its clientID if that is not too short.
func (s *State) cutOff(in settings, cluster *clusterv1.Cluster, fleet *fleetv1.Cluster, anothers bool) {
	if in.isAgentInitiated(cluster) && (anothers || len(fleet.Spec.ClientID) < leastLength) {
		fleet.Spec.ClientID = Drawn
		delete(s.AgentInitiated.CheckedIn, fleet.UID)
	}
}

// reasonsOfImported returns the reasons for a Cluster that is in Fleet, or will be once its agent has checked in.
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

// isIn reports whether the Cluster is in Fleet; if its agent registers itself, it must have done so. If the Fleet
// Cluster is older than the Cluster, a check-in may come from the agent of the earlier Cluster. It counts only once
// this Cluster has its manifest, is registered otherwise, or was reported as imported.
func (s *State) isIn(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) bool {
	if fleet == nil || fleet.Spec.KubeConfigSecret != "" {
		return fleet != nil
	}
	reported := meta.FindStatusCondition(cluster.Status.Conditions, manifestCondition)
	isItsOwn := !isInherited(cluster, fleet) || meta.IsStatusConditionTrue(cluster.Status.Conditions, importedCondition) ||
		reported != nil && (reported.Reason == "ManifestReady" || reported.Reason == "AlreadyRegistered")
	return s.AgentInitiated.CheckedIn[fleet.UID] && isItsOwn
}

// isInherited reports whether the Fleet Cluster is older than the Cluster.
func isInherited(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) bool {
	return fleet.CreationTimestamp.Before(&cluster.CreationTimestamp)
}

// CredentialName returns the name of the Secret in which Fleet leaves the credential of a registration.
func CredentialName(of *fleetv1.ClusterRegistration) string {
	sum := sha256.Sum256([]byte(of.Spec.ClientID + of.Spec.ClientRandom))
	return ("c-" + hex.EncodeToString(sum[:]))[:63]
}

const manifestSuffix = "-fleet-agent"

// ManifestOf names the Secret with the manifest of a Cluster.
func ManifestOf(cluster Key) Key {
	return Key{Namespace: cluster.Namespace, Name: cluster.Name + manifestSuffix}
}

// isManifestOf reports whether Muster made the Secret for this Cluster.
func isManifestOf(secret *corev1.Secret, cluster *clusterv1.Cluster) bool {
	return secret != nil && secret.Type == manifestType && len(secret.OwnerReferences) == 1 && isOwner(secret, cluster.UID)
}

// registrationsOf returns the keys of a Fleet Cluster's registrations: Muster's own, and the others.
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

// noteUsed records all present clientIDs.
func (s *State) noteUsed() {
	for _, fleet := range s.FleetClusters {
		s.AgentInitiated.used[fleet.Spec.ClientID] = true
	}
	for _, asked := range s.AgentInitiated.Registrations {
		s.AgentInitiated.used[asked.Spec.ClientID] = true
	}
}
