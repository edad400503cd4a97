package installer

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// AdoptAnnotation on the FleetAddonConfig hands over releases that another Helm client installed. Nothing else does.
	AdoptAnnotation = "fleet.addons.cluster.x-k8s.io/adopt-fleet"
	// DefaultRepository is the repository of the Fleet project.
	DefaultRepository = "https://rancher.github.io/fleet-helm-charts"
	// FleetNamespace is the namespace of Fleet and its releases. Fleet's programs know no other.
	FleetNamespace = stamp.FleetSystem
)

// CRDChart and FleetChart name Fleet's charts, and its releases.
const (
	CRDChart   = "fleet-crd"
	FleetChart = "fleet"
)

// The statuses of a release that the installer distinguishes.
const (
	StatusDeployed  = "deployed"
	pendingRollback = "pending-rollback"
)

// Release is the newest revision of a Helm release.
type Release struct {
	AppVersion string
	Version    *semver.Version
	// KubeVersion is the range of Kubernetes versions that the chart says it supports.
	KubeVersion string
	// Status is Helm's.
	Status string
	Values map[string]any
	// MadeBy identifies the installer's change that made a revision. Each change has its own; a
	// revision of another Helm client inherits it, and it is empty if no installer ever changed the
	// release. Before is the MadeBy of the previous revision.
	MadeBy, Before string
	// Deployed is the version that runs, which after a failed upgrade is an older one; nil if none does.
	Deployed *semver.Version
	// Changed is when Helm last wrote this revision, by the API server's clock. Helm's own timestamps come from the
	// machine that runs Helm.
	Changed time.Time
}

// isOurs reports whether an installer made the release.
func (r *Release) isOurs() bool { return r != nil && r.MadeBy != "" }

func (r *Release) isPending() bool { return strings.HasPrefix(r.Status, "pending-") }

// byInstaller reports whether an installer made this very revision, rather than a person with Helm.
// Helm copies the mark of the revision to which it rolls back; installers upgrade back instead.
func (r *Release) byInstaller() bool {
	return r.MadeBy != "" && r.MadeBy != r.Before && r.Status != pendingRollback
}

// Order describes a release that Releases.Put installs or upgrades.
type Order struct {
	Name string
	// Archive is the chart; nil keeps the deployed one.
	Archive []byte
	// Values override those of the chart.
	Values map[string]any
	// MadeBy is recorded on the revision.
	MadeBy string
	// KeepObjects makes Helm keep the release's objects when a later version no longer has them, or
	// when the release is uninstalled.
	KeepObjects bool
	// Adopt takes over existing objects that belong to no release.
	Adopt   bool
	Timeout time.Duration
	// DryRun changes nothing in the cluster.
	DryRun bool
}

// Releases reads and changes Helm releases in Fleet's namespace.
type Releases interface {
	// Find returns the newest revision of a release, or nil if it is not installed.
	Find(ctx context.Context, name string) (*Release, error)
	// Put installs or upgrades a release, and returns the manifests of the revision that was deployed, empty if there was
	// none, and of the new one. It rolls a failed upgrade back.
	Put(ctx context.Context, order Order) (was, becomes string, err error)
	// Abandon marks a pending revision as failed, if no Helm client works on it any more.
	Abandon(ctx context.Context, name, why string) error
}

// Problem is an obstacle that only a person can remove.
type Problem struct{ Reason, Message string }

func (p *Problem) Error() string { return p.Message }

// Repository offers charts. Its errors are *Problem, unless the repository is merely out of reach.
type Repository interface {
	// Offers returns the versions of a chart, or only the exact one that spec.install names, if it exists.
	Offers(ctx context.Context, chart string, exact *semver.Version) ([]*semver.Version, error)
	Fetch(ctx context.Context, chart string, version *semver.Version) ([]byte, error)
}

// OpenRepository returns the repository at a URL.
type OpenRepository func(address string, access repository.Access) (Repository, error)

// install holds the request of spec.install: an exact version, a range (within), or, with neither, the newest release.
type install struct {
	exact  *semver.Version
	within *semver.Constraints
	text   string // what the user wrote
	wanted string // the same in words
	// invalid says why the version is unusable; nil if it is usable. Admission refuses such a version.
	invalid *Problem

	repository string
	// secret has the credentials of the repository; its name is empty if there is none.
	secret types.NamespacedName
	// planOnly means that the installer only shows its next step.
	planOnly bool
}

// state is the observed state, and the requests of the FleetAddonConfig.
type state struct {
	config  *addonsv1.FleetAddonConfig
	install *install
	// FleetConfig is spec.config; its Server is nil if it sets none.
	addonsv1.FleetConfig
	// adopt hands over another Helm client's releases.
	adopt bool
	// rancher means that Rancher is installed, which installs Fleet itself.
	rancher     bool
	crds, fleet *Release
	// settings is Fleet's ConfigMap, nil if there is none.
	settings *corev1.ConfigMap
	// server is the address for agents; nil if none is needed, or if it is unknown. serverProblem says why.
	server        *server
	serverProblem *Problem
	// gatesMap is the ConfigMap for the feature gates; nil if none is named. gatesProblem says why it cannot be written.
	gatesMap     *corev1.ConfigMap
	gatesProblem *Problem
	// running is the version of the image in Fleet's Deployment; nil if there is none.
	running *semver.Version
	// attempts has the last look-ups, by install.lookup, the failed attempts, by plan.what, and by step the last texts
	// that the installer wrote into ConfigMaps that it does not own.
	attempts map[string]*attempt
	now      time.Time
	// kubernetes is the version of the management cluster's API server.
	kubernetes *semver.Version
}

// attempt is what the installer remembers, because no object has it: the answer of a repository, whose index of many
// megabytes is expensive to read, an attempt that failed, or a text that another program may revert.
type attempt struct {
	// due is when the next attempt is due. wait is how long that is after a failure or a revert; it doubles each time.
	due  time.Time
	wait time.Duration
	// failure says why it failed; its reason is empty if Helm failed.
	failure *Problem
	// offers are the versions that both charts have.
	offers []*semver.Version
	text   string
}

// isDue reports whether the step may be taken, which is true for one without an earlier attempt.
func (a *attempt) isDue(now time.Time) bool { return a == nil || !now.Before(a.due) }

// newState returns a state with the requests of a FleetAddonConfig.
func newState(config *addonsv1.FleetAddonConfig) *state {
	s := &state{config: config, install: installFrom(config.Spec.Install), adopt: config.Annotations[AdoptAnnotation] == "true"}
	if config.Spec.Config != nil {
		s.FleetConfig = *config.Spec.Config
	}
	if !settings.AsksForServer(s.Server) {
		s.Server = nil
	}
	return s
}

func (s *state) isNothing() bool { return s.install == nil && !s.asksForSettings() }

func (s *state) asksForSettings() bool { return settings.AsksForFleetSettings(s.config) }

// gatesIn is the ConfigMap that the user names for the feature gates; its name is empty if there is none.
func (s *state) gatesIn() types.NamespacedName {
	if s.FeatureGates == nil || s.FeatureGates.ConfigMap == nil || s.FeatureGates.ConfigMap.Ref == nil {
		return types.NamespacedName{}
	}
	ref := s.FeatureGates.ConfigMap.Ref
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

func installFrom(spec *addonsv1.FleetInstall) *install {
	if spec == nil || spec.Version == nil && !ptr.Deref(spec.FollowLatest, false) {
		return nil
	}
	result := &install{
		wanted:     "release",
		text:       strings.TrimSpace(ptr.Deref(spec.Version, "")),
		repository: strings.TrimSuffix(cmp.Or(ptr.Deref(spec.Repository, ""), DefaultRepository), "/"),
		planOnly:   spec.Mode == addonsv1.InstallPlan,
	}
	if ref := spec.RepositorySecretRef; ref != nil {
		result.secret = types.NamespacedName{Namespace: cmp.Or(ref.Namespace, FleetNamespace), Name: ref.Name}
	}
	if spec.Version == nil {
		return result
	}
	exact, err := semver.StrictNewVersion(strings.TrimPrefix(result.text, "v"))
	if err == nil {
		result.exact, result.wanted = exact, "version "+result.text
		return result
	}
	result.wanted = "version in the range " + result.text
	if result.within, err = semver.NewConstraint(result.text); err != nil {
		result.invalid = &Problem{addonsv1.VersionInvalidReason, fmt.Sprintf("spec.install.version: %q is neither a version nor a range: %v", result.text, err)}
	}
	return result
}

// version is the version of Fleet rather than of its chart; nil if it is unknown.
func (s *state) version() *semver.Version {
	if s.fleet == nil {
		return s.running
	}
	if parsed, err := semver.NewVersion(s.fleet.AppVersion); err == nil {
		return parsed
	}
	return s.fleet.Version
}
