package installer

import (
	"context"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
)

// Fleet's charts, and its releases, which have their names.
const (
	CRDChart   = "fleet-crd"
	FleetChart = "fleet"
)

// Status is the status of a Helm release, in Helm's own words.
type Status string

// The statuses that make a difference.
const (
	StatusDeployed   Status = "deployed"
	StatusFailed     Status = "failed"
	pendingRollback  Status = "pending-rollback"
	pendingPrefix           = "pending-"
	StatusSuperseded Status = "superseded"
)

// Release is the newest revision of a Helm release.
type Release struct {
	AppVersion string
	Version    *semver.Version
	// KubeVersion is the range of Kubernetes versions that the chart says it is for.
	KubeVersion string
	Revision    int
	Status      Status
	Description string
	Values      map[string]any
	// MadeBy distinguishes who has made a revision: it is another one for each time that an
	// installer does something, is inherited where somebody else does, and is empty where
	// no installer ever did. Before is that of the revision before.
	MadeBy, Before string
	// Deployed is the version that serves, which after a failed upgrade is an older one;
	// nil if none does.
	Deployed *semver.Version
	// Seen is since when an installer has seen this revision to be pending. By its own clock:
	// Helm notes the time of the machine that it runs on, and not when it was there last.
	Seen time.Time
}

// isOurs reports whether an installer has made the release.
func (r *Release) isOurs() bool { return r != nil && r.MadeBy != "" }

func (r *Release) isPending() bool { return strings.HasPrefix(string(r.Status), pendingPrefix) }

// byInstaller reports whether an installer, and nobody with Helm's own commands, has made
// this very revision. A rollback has the mark of the revision that it returns to; installers
// upgrade back instead.
func (r *Release) byInstaller() bool {
	return r.MadeBy != "" && r.MadeBy != r.Before && r.Status != pendingRollback
}

// Order is what a release is to become.
type Order struct {
	Name string
	// Archive is the chart; nil keeps the one that is deployed.
	Archive []byte
	// Values are all that the release is to have beside the chart's own.
	Values map[string]any
	// MadeBy is noted on the release.
	MadeBy string
	// KeepObjects has Helm leave the release's objects where they are when a later version
	// does not have them any more, or the release is uninstalled.
	KeepObjects bool
	// Adopt takes objects over that are there without a release.
	Adopt   bool
	Timeout time.Duration
	// DryRun changes nothing.
	DryRun bool
}

// Releases makes and changes Helm releases in Fleet's namespace.
type Releases interface {
	// Find returns the release of this name, nil if there is none.
	Find(ctx context.Context, name string) (*Release, error)
	// Put installs a release, or upgrades it. An upgrade that fails is rolled back.
	Put(ctx context.Context, order Order) (manifest string, err error)
	// Abandon marks a revision as failed on which nobody works any more.
	Abandon(ctx context.Context, name, why string) error
	// Manifest returns the objects of what is deployed.
	Manifest(ctx context.Context, name string) (string, error)
}

// Offer is one version of a chart in a repository.
type Offer struct{ Version *semver.Version }

// Problem is something in the way that only a person can move.
type Problem struct{ Reason, Message string }

func (p *Problem) Error() string { return p.Message }

// Repository is where charts come from. Its errors are *Problem where they mean more than
// that it cannot be reached.
type Repository interface {
	Offers(ctx context.Context, chart string) ([]Offer, error)
	Fetch(ctx context.Context, chart string, version *semver.Version) ([]byte, error)
}

// Credentials are for a repository.
type Credentials struct {
	Username, Password, Token string
	// CA is in PEM; if empty, the well-known ones are trusted.
	CA []byte
}

// OpenRepository returns the repository at an address.
type OpenRepository func(address string, credentials Credentials) (Repository, error)

// state is what there is, as far as it has been observed.
type state struct {
	wanted
	// generation is that of the FleetAddonConfig.
	generation int64
	// rancher means that Rancher is installed, which installs Fleet itself.
	rancher     bool
	crds, fleet *Release
	// settings is Fleet's ConfigMap, nil if there is none.
	settings *corev1.ConfigMap
	// server is where agents are to find the management cluster, nil if nothing is said
	// of it or it is not known; then serverProblem says why.
	server        *server
	serverProblem *Problem
	// gatesMap is the ConfigMap that the gates are written to, nil if it is not named or
	// cannot be read; then gatesProblem says why.
	gatesMap     *corev1.ConfigMap
	gatesProblem *Problem
	// offered is what the repository has, nil if nobody has asked.
	offered *offered
	// running is the version of the image that Fleet's Deployment has; nil if it has none.
	running *semver.Version
	// failures are attempts that failed, by what was tried.
	failures map[string]*failure
	// writes are what was written last into ConfigMaps that are somebody else's.
	writes map[step]*written
	now    time.Time
	// kubernetes is the version of the management cluster.
	kubernetes *semver.Version
}

// offered is the answer of a repository.
type offered struct {
	offers []Offer
	err    error
}

// failure is an attempt that failed, and when the next is due.
type failure struct {
	// reason explains why there was nothing to try with; it is empty where Helm failed.
	reason, message string
	next            time.Time
	count           int
}

// owner specifies whose Fleet it is.
type owner string

const (
	nobody    owner = "nobody"
	ours      owner = "ours"
	theirs    owner = "theirs"
	ranchers  owner = "rancher"
	unmanaged owner = "unmanaged"
)

// owner returns whose Fleet is there.
func (s *state) owner() owner {
	switch {
	case s.rancher:
		return ranchers
	case s.fleet != nil && !s.fleet.isOurs(), s.crds != nil && !s.crds.isOurs():
		return theirs
	case s.fleet != nil || s.crds != nil:
		return ours
	case s.settings != nil:
		return unmanaged
	default:
		return nobody
	}
}

// version is the version of Fleet, as opposed to that of its chart; nil if it is not known.
func (s *state) version() *semver.Version {
	if s.fleet == nil {
		return s.running
	}
	if parsed, err := semver.NewVersion(s.fleet.AppVersion); err == nil {
		return parsed
	}
	return s.fleet.Version
}
