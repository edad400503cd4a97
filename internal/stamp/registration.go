package stamp

import (
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/internal/settings"
)

const (
	// RegistrationAnnotation on a Cluster says how it is registered, and takes precedence over the
	// FleetAddonConfig: see Registration for its values.
	RegistrationAnnotation = Domain + "/registration"
	// RotateAnnotation on a Cluster whose agent registers itself requests a new credential whenever its value
	// changes. An empty value requests none.
	RotateAnnotation = Domain + "/rotate-agent-credential"
)

// The objects that the registrar issues for a Cluster whose agent registers itself.
const (
	// ManifestKey is the key of the manifest in the Cluster's ManifestSecret.
	ManifestKey = "manifest"
	// ManifestSecretType is the type of that Secret: Muster never overwrites or reads a Secret of
	// another type.
	ManifestSecretType = Domain + "/agent-manifest"

	// MinClientID is the minimum length of a clientID that is registered: a client that guesses the ID can
	// register as the cluster.
	MinClientID = 16

	// FleetSystem is the namespace of Fleet itself.
	FleetSystem = "cattle-fleet-system"

	// RegistrarLease is the Lease by which the registrar elects its leader. The syncer reads it to see
	// whether the registrar runs.
	RegistrarLease = "muster-registrar"
	// InstallerLease is the Lease of the installer.
	InstallerLease = "muster-installer"
	// HelmLease is the Lease of the program that reconciles HelmChartProxies.
	HelmLease = "muster-helm"
	// HelmCRD is the name of the CRD of HelmChartProxies: see IsHelmCRDOurs.
	HelmCRD = "helmchartproxies.addons.cluster.x-k8s.io"
	// HelmChartProxyLabel is on each object that Muster creates in Fleet for a HelmChartProxy.
	HelmChartProxyLabel = "helmchartproxy-name." + Domain

	manifestSuffix = "-fleet-agent"
)

// IsHelmCRDOurs reports whether the CRD of HelmChartProxies has our label, or belongs to a Helm release in our namespace: Helm
// writes its own value of this label over the chart's.
func IsHelmCRDOurs(crd metav1.Object, namespace string) bool {
	switch crd.GetLabels()[ManagedByLabel] {
	case ManagedBy:
		return true
	case "Helm":
		return namespace != "" && crd.GetAnnotations()["meta.helm.sh/release-namespace"] == namespace
	}
	return false
}

// ManifestSecret returns the name of the Secret with a Cluster's manifest. A ClusterClass
// can compute it.
func ManifestSecret(cluster string) string { return cluster + manifestSuffix }

// DefaultStaleAfter is three times Fleet's default agentCheckinInterval. An agent does not send a lost
// report again, so with twice the interval, each lost report would make the agent stale.
const DefaultStaleAfter = 45 * time.Minute

// Registration specifies which side registers a cluster with Fleet.
type Registration string

// The registrations.
const (
	// ByManager makes Fleet install the agent through the Cluster's kubeconfig.
	ByManager Registration = "manager"
	// ByAgent lets the agent register itself, with a credential made in advance.
	ByAgent Registration = "agent"
)

// IsRegistration reports whether the RegistrationAnnotation may have this value.
func IsRegistration(value string) bool {
	return value == string(ByManager) || value == string(ByAgent)
}

// RegistrationOf returns which side registers a Cluster with Fleet. An annotation with an unknown value is
// ignored. Fleet is the Fleet Cluster that belongs to the Cluster, nil if there is none. If the FleetAddonConfig
// is gone, perhaps for a moment, a Cluster whose agent registered itself and has checked in keeps ByAgent.
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
