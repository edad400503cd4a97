package registrar

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Reasons of the condition stamp.ManifestCondition.
const (
	reasonReady        = "ManifestReady"
	reasonWaiting      = "WaitingForFleet"
	reasonUnconfigured = "FleetNotConfigured"
	reasonRegistered   = stamp.AlreadyRegistered
	reasonConflict     = "RegistrationConflict"
	reasonSecretTaken  = "SecretConflict"
	reasonLost         = "CredentialLost"
	reasonFailed       = "Failed"
)

var reasons = []string{
	reasonReady, reasonWaiting, reasonUnconfigured, reasonRegistered, reasonConflict, reasonSecretTaken, reasonLost, reasonFailed,
}

const (
	registrationPrefix  = "muster-"
	registrationIDBytes = 16
)

const (
	// pollInterval is how often is asked for what no event tells: Fleet's credential.
	pollInterval = 2 * time.Second
	// checkInterval is how often what is issued is written again while the agent has not
	// called, and restInterval how often from then on: somebody may have deleted or changed it,
	// and to watch Secrets would take the right to read all of them.
	checkInterval = time.Minute
	restInterval  = time.Hour
	// minClientIDAge is how long our own cache must have shown a clientID that was not there from
	// the beginning. Fleet makes another Fleet Cluster for a registration whose clientID it does
	// not know, and nothing that it writes says which it knows. It watches Fleet Clusters and
	// registrations as we do, on the same API server, and each event reaches either of us within
	// milliseconds; a watch that breaks is back within this time, and a Fleet that starts lists
	// both before it looks at any. If it is too short all the same, Fleet says so in the
	// registration (see isForAnother), and nothing is issued.
	minClientIDAge = 5 * time.Second
	// changed is the generation of what is not as it was made; the cache counts no further.
	changed = 2
	// credentialTimeout is how long after a registration Fleet's credential may still come.
	// Fleet keeps it for 40 minutes.
	credentialTimeout = 5 * time.Minute
	// firstCheckInTimeout is how long after its registration an agent of Fleet's may take to call.
	firstCheckInTimeout = 2 * time.Minute
)

// step is what is done next for a Cluster. Each is taken at most once in a reconcile.
type step string

const (
	// rest ends the reconcile: the outcome says how things stand.
	rest step = "rest"
	// dryRun asks whether the Secret with the manifest could be written: somebody may have
	// one of its name, a quota or a policy may forbid it.
	dryRun step = "rehearse"
	// register creates the ClusterRegistration.
	register step = "register"
	// collect reads the credential that Fleet has made.
	collect step = "collect"
	// note writes the record: the credential must not be lost before it is issued.
	note step = "note"
	// issue writes the Secret with the manifest.
	issue step = "issue"
	// withdraw empties it.
	withdraw step = "withdraw"
	// revoke deletes registrations that another one has replaced, and with them their
	// credentials.
	revoke step = "revoke"
)

// outcome is what is reported on the Cluster. Without a reason nothing is, and what was reported is
// taken back.
type outcome struct {
	status          metav1.ConditionStatus
	reason, message string
	// keep leaves what was reported before.
	keep bool
	// after is when the Cluster is reconciled again if no event brings it back.
	after time.Duration
}

func waiting(reason, message string, after time.Duration) outcome {
	return outcome{status: metav1.ConditionFalse, reason: reason, message: message, after: after}
}

// scope is what one reconcile knows of a Cluster.
type scope struct {
	cluster *clusterv1.Cluster
	// retained: everything stays as it is. byAgent: the Cluster is to be registered ahead.
	retained, byAgent bool
	// fleet is the Fleet Cluster that belongs to the Cluster; nil if there is none.
	fleet *fleetv1.Cluster
	// rival is the Fleet Cluster that has the namespace in Fleet that this one would get; zero
	// if there is none.
	rival types.NamespacedName
	// server is how agents reach Fleet; unreachable says why that is not known.
	server      server
	unreachable string
	// agent is what Fleet's own Bundle deploys; empty if it is not there yet.
	agent string
	// registrations are those that the Fleet Cluster owns, and the one of the expected name.
	registrations []fleetv1.ClusterRegistration
	now           time.Time
	// known is since when the cache has shown the clientID of the Fleet Cluster.
	known time.Time

	// recorded is the record of an earlier reconcile. isRegistered says that the registration that its
	// token is of is there.
	recorded     record
	isRegistered bool

	taken map[step]bool
	// refused means that somebody else has the Secret's name, as rehearse or publish found.
	refused *outcome
	// credential is what collect has found; nil if it is not there.
	credential *credential
}

// next returns what to do next, and, if that is to rest, how things stand. It is pure.
func (s *scope) next() (step, outcome) {
	switch {
	case s.retained:
		return rest, outcome{keep: true}
	case !s.byAgent:
		return s.nextOfEnd()
	case s.isRegistered && s.fleet != nil && s.fleet.Spec.KubeConfigSecret != "":
		return rest, outcome{keep: true, after: checkInterval} // It turns back, and the syncer has yet to say so.
	case s.fleet == nil || s.fleet.Spec.KubeConfigSecret != "" || s.fleet.Spec.ClientID == "":
		return rest, waiting(reasonWaiting, "the syncer has not made its Fleet Cluster for an agent that registers itself yet; see the condition FleetImported", 0)
	case len(s.fleet.Spec.ClientID) > bounds.MaxName: // The cache has cut it.
		return rest, waiting(reasonConflict, fmt.Sprintf("spec.clientID of Fleet Cluster %q is longer than %d bytes; set a shorter one", s.fleet.Name, bounds.MaxName), 0)
	case s.fleet.Status.Namespace == "":
		return rest, waiting(reasonWaiting, "Fleet has not given the Fleet Cluster a namespace yet", 0)
	case s.fleet.Status.Namespace != deploymentNamespace(s.fleet):
		// Fleet makes the account wherever this says, with the right to read Secrets there, and
		// whoever may write the status of a Fleet Cluster, any agent among them, may say it.
		return rest, waiting(reasonConflict, fmt.Sprintf(
			"status.namespace of Fleet Cluster %q is %q, not %q as Fleet names it: someone has changed it; set it back, or delete the Fleet Cluster and it is made again",
			s.fleet.Name, s.fleet.Status.Namespace, deploymentNamespace(s.fleet)), 0)
	case s.rival.Name != "":
		// The account that Fleet makes for the agent may read the Secrets there.
		return rest, waiting(reasonConflict, stamp.SharedFleetNamespace(s.fleet.Namespace, s.fleet.Name, s.cluster.Name), checkInterval)
	case s.unreachable != "":
		return rest, waiting(reasonUnconfigured, s.unreachable, 0)
	case s.current() == nil && s.hasOtherCredential() && s.recorded.token != "" && !s.taken[withdraw]:
		return withdraw, outcome{}
	case s.current() == nil && s.hasOtherCredential():
		return rest, waiting(reasonRegistered, fmt.Sprintf(
			"its agent has checked in with a credential that Muster has not issued, and keeps it; to have it replaced by a new one, set the annotation %s to another value", stamp.RotateAnnotation), 0)
	case s.current() == nil && s.beingRegistered() != nil:
		return rest, waiting(reasonWaiting, fmt.Sprintf(
			"an agent that Muster did not register asks for its credential by ClusterRegistration %q; delete that if no such agent runs, or set the annotation %s to another value", s.beingRegistered().Name, stamp.RotateAnnotation), s.pollOf(s.beingRegistered()))
	case s.current() == nil && s.isClientIDNew():
		return rest, waiting(reasonWaiting, "Fleet may not know its clientID yet", minClientIDAge)
	case s.taken[register]:
		return rest, waiting(reasonWaiting, "Fleet has not granted the registration yet", pollInterval)
	case s.current() != nil && (s.current().Spec.ClientID != s.fleet.Spec.ClientID || s.current().Spec.ClientRandom == ""):
		return rest, waiting(reasonConflict, fmt.Sprintf("ClusterRegistration %q is not Muster's, and has the name of the one that is needed; delete it", s.current().Name), checkInterval)
	case s.isForAnother():
		return rest, waiting(reasonConflict, fmt.Sprintf(
			"Fleet takes ClusterRegistration %q for that of Fleet Cluster %q, which has the same clientID; delete that, and the cluster is registered anew",
			s.current().Name, s.current().Status.ClusterName), checkInterval)
	case s.current() != nil && !s.current().Status.Granted:
		return rest, waiting(reasonWaiting, "Fleet has not granted the registration yet", s.pollOf(s.current()))
	default:
		return s.nextOfSecret()
	}
}

// nextOfSecret is next for a Cluster that is registered or can be. Fleet keeps a credential
// for 40 minutes, so whatever can keep a manifest from being issued is checked before
// there is one.
func (s *scope) nextOfSecret() (step, outcome) {
	switch {
	case s.agent == "":
		return rest, waiting(reasonWaiting, fmt.Sprintf("Fleet has not made Bundle %q with its agent yet", stamp.AgentBundle(s.fleet.Name)), 0)
	case len(s.agent) > maxAgent:
		return rest, waiting(reasonWaiting, fmt.Sprintf(
			"%s of Bundle %q is larger than %d KiB, and no manifest is made from it; delete the Bundle if it is not Fleet's, otherwise give the agent fewer tolerations and variables",
			agentResource, stamp.AgentBundle(s.fleet.Name), maxAgent>>10), 0)
	case s.current() == nil && len(s.fleet.Spec.ClientID) < stamp.MinClientID:
		return rest, waiting(reasonConflict, fmt.Sprintf(
			"spec.clientID of Fleet Cluster %q has fewer than %d characters, so anyone could guess it and call as the cluster; set a longer one, and a manifest is made for it", s.fleet.Name, stamp.MinClientID), 0)
	case s.current() == nil && !s.taken[dryRun]:
		return dryRun, outcome{}
	case s.refused != nil:
		return rest, *s.refused
	case s.current() == nil:
		return register, outcome{}
	case s.token() == "" && !s.taken[collect]:
		return collect, outcome{}
	case s.token() == "" && s.now.Sub(s.current().CreationTimestamp.Time) < credentialTimeout:
		return rest, waiting(reasonWaiting, "Fleet has not handed over the credential yet", pollInterval)
	case s.token() == "":
		return rest, waiting(reasonLost, fmt.Sprintf(
			"the cluster is registered, and neither Muster nor Fleet has its credential any more; an agent that has it goes on working; to have it replaced by a new one, set the annotation %s to another value", stamp.RotateAnnotation), 0)
	case s.isToBeNoted():
		return note, outcome{}
	case !s.taken[issue]:
		return issue, outcome{}
	case !s.taken[revoke] && len(s.replaced()) > 0:
		return revoke, outcome{}
	default:
		result := outcome{
			status: metav1.ConditionTrue, reason: reasonReady, after: restInterval,
			message: fmt.Sprintf("the manifest for the cluster is in Secret %q, key %s", stamp.ManifestSecret(s.cluster.Name), stamp.ManifestKey),
		}
		if s.fleet.Status.Agent.LastSeen.IsZero() {
			result.after = checkInterval
		}
		return rest, result
	}
}

// nextOfEnd is next for a Cluster that is not, or no longer, to be registered ahead. What was
// issued stays as long as it works: until Fleet has installed an agent, which registers
// under the same clientID, or until the Fleet Cluster is gone.
func (s *scope) nextOfEnd() (step, outcome) {
	switch {
	case s.recorded.token != "" && s.isRegistered:
		return rest, outcome{keep: true, after: checkInterval}
	case s.recorded.token != "":
		return withdraw, outcome{}
	default:
		return rest, outcome{}
	}
}

// isToBeNoted reports whether the record is not of what is to be issued.
func (s *scope) isToBeNoted() bool {
	return s.recorded.registration != s.current().UID || s.recorded.token != s.token() || s.isRotated()
}

// record returns the record of what is to be issued.
func (s *scope) record() record {
	result := record{token: s.token(), registration: s.current().UID, registrationName: s.current().Name, rotation: s.recorded.rotation}
	if s.isRotated() {
		result.rotation = s.rotation()
	}
	return result
}

// current returns the registration by which the Cluster is registered; nil if there is none.
// If nobody asks for another credential, it is the one that Fleet has granted last.
func (s *scope) current() *fleetv1.ClusterRegistration {
	name := s.registrationName()
	var current *fleetv1.ClusterRegistration
	for i := range s.registrations {
		switch registration := &s.registrations[i]; {
		case s.isRotated() && registration.Name == name:
			return registration
		case s.isRotated():
		case registration.Name == name, isOurs(*registration) && registration.Spec.ClientID == s.fleet.Spec.ClientID:
			if current == nil || s.isLater(registration, current) {
				current = registration
			}
		}
	}
	return current
}

// isRotated reports whether somebody asks for another credential than there is. To take the
// annotation away, or to leave it when it has been followed, asks for nothing.
func (s *scope) isRotated() bool {
	asked := s.rotation()
	return asked != "" && asked != s.recorded.rotation
}

// rotation returns the digest of the wish for another credential; empty if there is none.
func (s *scope) rotation() string { return digest(s.cluster.Annotations[stamp.RotateAnnotation]) }

// isLater reports whether one registration says more than another about how a cluster is
// registered: a granted one, of these the one issued, otherwise the younger. The clocks of two
// API servers may disagree about which that is.
func (s *scope) isLater(one, other *fleetv1.ClusterRegistration) bool {
	if one.Status.Granted != other.Status.Granted {
		return one.Status.Granted
	}
	if one.UID == s.recorded.registration || other.UID == s.recorded.registration {
		return one.UID == s.recorded.registration
	}
	if !one.CreationTimestamp.Equal(&other.CreationTimestamp) {
		return other.CreationTimestamp.Before(&one.CreationTimestamp)
	}
	return one.Name > other.Name
}

// registrationName is the same as long as Fleet Cluster, clientID and the wish for a new
// credential are: a registration is made once.
func (s *scope) registrationName() string {
	sum := sha256.New()
	for _, part := range []string{string(s.fleet.UID), s.fleet.Spec.ClientID, s.rotation()} {
		fmt.Fprintf(sum, "%d %s", len(part), part)
	}
	return registrationPrefix + hex.EncodeToString(sum.Sum(nil)[:registrationIDBytes])
}

// hasOtherCredential reports whether the agent has checked in with a credential that is not ours,
// and nobody asks for another. To register the cluster once more would cut it off.
func (s *scope) hasOtherCredential() bool {
	return !s.fleet.Status.Agent.LastSeen.IsZero() && !s.isRotated() &&
		slices.ContainsFunc(s.registrations, func(r fleetv1.ClusterRegistration) bool {
			return !isOurs(r) && r.Status.Granted && r.Spec.ClientID == s.fleet.Spec.ClientID
		})
}

// beingRegistered returns the ClusterRegistration by which somebody else, such as the agent that
// Fleet installs, is being registered under this clientID; nil if there is none.
// Fleet deletes all older registrations of the clientID before it grants the last one: one that
// the registrar made now would cut off an agent that works.
func (s *scope) beingRegistered() *fleetv1.ClusterRegistration {
	if s.isRotated() {
		return nil
	}
	for i := range s.registrations {
		r := &s.registrations[i]
		if !isOurs(*r) && r.Spec.ClientID == s.fleet.Spec.ClientID &&
			(!r.Status.Granted || s.now.Sub(r.CreationTimestamp.Time) < firstCheckInTimeout) {
			return r
		}
	}
	return nil
}

// pollOf returns how often a registration that Fleet has not granted is checked. An event shows
// when it has: this is for what passes without one, and Fleet may be away for long.
func (s *scope) pollOf(registration *fleetv1.ClusterRegistration) time.Duration {
	if s.now.Sub(registration.CreationTimestamp.Time) < credentialTimeout {
		return pollInterval
	}
	return checkInterval
}

// isClientIDNew reports whether Fleet may not know the clientID yet. One that was there when
// Fleet gave the Fleet Cluster its namespace it has seen.
func (s *scope) isClientIDNew() bool {
	return s.fleet.Generation >= changed && s.now.Sub(s.known) < minClientIDAge
}

// isForAnother reports whether Fleet has found another Fleet Cluster by the clientID, or made
// one because it did not know ours yet.
func (s *scope) isForAnother() bool {
	return s.current() != nil && s.current().Status.ClusterName != "" && s.current().Status.ClusterName != s.fleet.Name
}

// token returns the credential to issue: the one that was issued before for the same
// registration, or the one that Fleet has made.
func (s *scope) token() string {
	if s.current() == nil {
		return ""
	}
	if s.recorded.registration == s.current().UID && s.recorded.token != "" {
		return s.recorded.token
	}
	if s.credential.isFor(s.fleet) {
		return s.credential.token
	}
	return ""
}

// replaced returns the registrations of ours that are not the current one, and those that
// Fleet has granted under a clientID that the Fleet Cluster had before it was taken over:
// Fleet itself deletes only those of the same clientID.
func (s *scope) replaced() []fleetv1.ClusterRegistration {
	var result []fleetv1.ClusterRegistration
	current := s.current().Name // Once: a tenant says how many there are.
	for _, registration := range s.registrations {
		isEarlier := registration.Status.Granted && registration.Spec.ClientID != s.fleet.Spec.ClientID
		if registration.Name != current && (isOurs(registration) || isEarlier) {
			result = append(result, registration)
		}
	}
	return result
}

func isOurs(registration fleetv1.ClusterRegistration) bool {
	return registration.Labels[stamp.ManagedByLabel] == stamp.ManagedBy
}
