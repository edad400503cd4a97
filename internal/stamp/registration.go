package stamp

import (
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/internal/settings"
)

const (
	// RegistrationAnnotation on a Cluster says how it is registered, whatever the
	// FleetAddonConfig says: see Registration for its values.
	RegistrationAnnotation = Domain + "/registration"
	// RotateAnnotation on a Cluster that is registered ahead asks for a new credential
	// whenever it gets another value. Without a value it asks for nothing.
	RotateAnnotation = Domain + "/rotate-agent-credential"
)

// What is issued for a Cluster that is registered ahead.
const (
	// ManifestKey is the key of the manifest in the Cluster's ManifestSecret.
	ManifestKey = "manifest"
	// ManifestSecretType is the type of that Secret: no other is overwritten or read.
	ManifestSecretType = Domain + "/agent-manifest"
	// ManifestCondition on a Cluster says whether there is a manifest to issue.
	ManifestCondition = "FleetAgentManifestReady"
	// AlreadyRegistered is its reason where an agent has checked in with a credential that was
	// not issued, and keeps it.
	AlreadyRegistered = "AlreadyRegistered"
	// MinClientID is the fewest characters of a clientID that is registered: whoever guesses
	// it can call as the cluster.
	MinClientID = 16

	// FleetSystem is the namespace of Fleet itself.
	FleetSystem = "cattle-fleet-system"

	// RegistrarLease is the Lease by which the registrar elects its leader, and by which the
	// syncer sees that there is one.
	RegistrarLease = "muster-registrar"
	// InstallerLease is the same of the installer.
	InstallerLease = "muster-installer"
	// HelmLease is that of the program that carries out HelmChartProxies.
	HelmLease = "muster-helm"
	// HelmCRD is the name of the CRD of HelmChartProxies. It is ours if it has our label.
	HelmCRD = "helmchartproxies.addons.cluster.x-k8s.io"
	// HelmChartProxyLabel is on each object that Muster makes in Fleet for a HelmChartProxy.
	HelmChartProxyLabel = "helmchartproxy-name." + Domain

	manifestSuffix = "-fleet-agent"
)

// ManifestSecret returns the name of the Secret with a Cluster's manifest. A ClusterClass
// can compute it.
func ManifestSecret(cluster string) string { return cluster + manifestSuffix }

// DefaultStaleAfter is three times Fleet's default agentCheckinInterval: an agent does not send a
// lost report again, so at twice the interval each lost report would make the agent stale.
const DefaultStaleAfter = 45 * time.Minute

// AgentStale is the reason of a Cluster whose agent has been silent for longer than that.
const AgentStale = "AgentStale"

// Registration specifies which side registers a cluster with Fleet.
type Registration string

// The registrations.
const (
	// ByManager has Fleet install the agent through the Cluster's kubeconfig.
	ByManager Registration = "manager"
	// ByAgent leaves it to the agent to register itself, with a credential that was made in advance.
	ByAgent Registration = "agent"
)

// IsRegistration reports whether a value of the RegistrationAnnotation means anything.
func IsRegistration(value string) bool {
	return value == string(ByManager) || value == string(ByAgent)
}

// RegistrationOf returns which side registers a Cluster with Fleet. An annotation that means
// nothing counts as none. Fleet is the Fleet Cluster that belongs to the Cluster, nil if there
// is none: a FleetAddonConfig that is gone, for a moment perhaps, turns no agent that has checked in.
func RegistrationOf(in settings.Cluster, subject Subject, fleet *fleetv1.Cluster) Registration {
	if asked := subject.Annotations[RegistrationAnnotation]; IsRegistration(asked) {
		return Registration(asked)
	}
	if in.AgentInitiated && in.AgentInitiatedSelector.Matches(labels.Set(WithClassLabels(subject.Labels, subject.Class))) {
		return ByAgent
	}
	if in.Unconfigured && fleet != nil && fleet.Spec.KubeConfigSecret == "" && !fleet.Status.Agent.LastSeen.IsZero() {
		return ByAgent
	}
	return ByManager
}
