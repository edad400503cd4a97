package registrar

import (
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	registrationPrefix = "muster-"
	// digestLength is how many hex digits of a digest are in a name.
	digestLength = 32
)

const (
	// pollInterval is how often the registrar checks for Fleet's credential, for which it gets no event.
	pollInterval = 2 * time.Second
	// checkInterval is how often the registrar writes the Secret again until the agent has checked in; from then on, it
	// does so every settings.UnwatchedInterval.
	checkInterval = time.Minute
	// minClientIDAge is how long the registrar's cache must have shown a changed clientID before it
	// registers under it. For a registration whose clientID it does not know, Fleet makes another Fleet
	// Cluster, and nothing that it writes says which ones it knows. Fleet and the registrar watch the same objects on
	// the same API server, and each event reaches both within milliseconds; a watch that breaks is back
	// within this time, and Fleet lists everything when it starts. If the time is still too short, Fleet
	// says so in the registration (see isForAnother), and the registrar issues nothing.
	minClientIDAge = 5 * time.Second
	// changed is the generation of an object that was modified after its creation; the cache counts no further.
	changed = 2
	// credentialTimeout is how long after a registration Fleet's credential may still come.
	// Fleet keeps it for 40 minutes.
	credentialTimeout = 5 * time.Minute
	// firstCheckInTimeout is how long after its registration one of Fleet's agents may take to check in.
	firstCheckInTimeout = 2 * time.Minute
)

// step is one action for a Cluster. A reconcile takes each at most once.
type step string

const (
	// rest ends the reconcile; the outcome has the status.
	rest step = "rest"
	// dryRun tests whether the API server would accept the Secret with the manifest: the name may be taken, or a
	// quota or a policy may forbid it.
	dryRun step = "rehearse"
	// register creates the ClusterRegistration.
	register step = "register"
	// collect reads the credential that Fleet has made.
	collect step = "collect"
	// note writes the record, so that the credential is not lost before it is issued.
	note step = "note"
	// issue writes the Secret with the manifest.
	issue step = "issue"
	// withdraw empties the Secret.
	withdraw step = "withdraw"
	// revoke deletes replaced registrations, and with them their credentials.
	revoke step = "revoke"
)

// outcome is the condition to report on the Cluster. Without a reason, an earlier condition is
// removed.
type outcome struct {
	status          metav1.ConditionStatus
	reason, message string
	// unchanged leaves the earlier condition.
	unchanged bool
	// after is when to reconcile the Cluster again without an event.
	after time.Duration
}

func waiting(reason, message string, after time.Duration) outcome {
	return outcome{status: metav1.ConditionFalse, reason: reason, message: message, after: after}
}

// scope has all facts about a Cluster that one reconcile needs.
type scope struct {
	cluster *clusterv1.Cluster
	// suspended means that everything stays as it is; byAgent, that the registrar registers the Cluster.
	suspended, byAgent bool
	// fleet is the Fleet Cluster that belongs to the Cluster; nil if there is none.
	fleet *fleetv1.Cluster
	// holder is the Fleet Cluster that already has the namespace that Fleet would derive for this one;
	// zero if there is none.
	holder types.NamespacedName
	// server is how agents reach Fleet; unreachable says why that is unknown.
	server      server
	unreachable string
	// agent is the agent's manifest from Fleet's own Bundle; empty if there is none yet.
	agent string
	// registrations are owned by the Fleet Cluster, or have the name that the registrar would choose.
	registrations []fleetv1.ClusterRegistration
	now           time.Time
	// known is since when the cache has shown the clientID of the Fleet Cluster.
	known time.Time

	// recorded is the record of an earlier reconcile. isRegistered means that the registration named in
	// it still exists.
	recorded     record
	isRegistered bool

	taken map[step]bool
	// refused is set when dryRun or issue finds the Secret's name taken.
	refused *outcome
	// credential is the result of collect; nil if Fleet has none.
	credential *credential
}

// next returns the next step, or rest with the outcome. It is pure.
func (s *scope) next() (step, outcome) {
	switch {
	case s.suspended:
		return rest, outcome{unchanged: true}
	case !s.byAgent:
		return s.nextOfEnd()
	case s.isRegistered && s.fleet != nil && s.fleet.Spec.KubeConfigSecret != "":
		return rest, outcome{unchanged: true, after: checkInterval} // The Cluster changes back to the manager, and the syncer has yet to report that.
	case s.fleet == nil || s.fleet.Spec.KubeConfigSecret != "" || s.fleet.Spec.ClientID == "":
		return rest, waiting(addonsv1.WaitingForFleetReason, "the syncer has not yet created its Fleet Cluster for an agent that registers itself; see the condition FleetImported", 0)
	case len(s.fleet.Spec.ClientID) > bounds.MaxName: // The cache cuts longer ones.
		return rest, waiting(addonsv1.RegistrationConflictReason, fmt.Sprintf("spec.clientID of Fleet Cluster %q is longer than %d bytes; set a shorter one", s.fleet.Name, bounds.MaxName), 0)
	case s.fleet.Status.Namespace == "":
		return rest, waiting(addonsv1.WaitingForFleetReason, "Fleet has not given the Fleet Cluster a namespace yet", 0)
	case s.fleet.Status.Namespace != deploymentNamespace(s.fleet):
		// Fleet makes the agent's account in this namespace, with the right to read Secrets there. Anyone
		// who may write the status of a Fleet Cluster, such as any agent, can set it.
		return rest, waiting(addonsv1.RegistrationConflictReason, fmt.Sprintf(
			"status.namespace of Fleet Cluster %q is %q, but Fleet would set %q, so something has changed it; restore it, or delete the Fleet Cluster, which the syncer then recreates",
			s.fleet.Name, s.fleet.Status.Namespace, deploymentNamespace(s.fleet)), 0)
	case s.holder.Name != "":
		// The account that Fleet makes for the agent may read the Secrets in the shared namespace.
		return rest, waiting(addonsv1.RegistrationConflictReason, stamp.SharedFleetNamespace(s.fleet.Namespace, s.fleet.Name, s.cluster.Name), checkInterval)
	case s.unreachable != "":
		return rest, waiting(addonsv1.FleetNotConfiguredReason, s.unreachable, 0)
	case s.current() == nil && s.hasOtherCredential() && s.recorded.token != "" && !s.taken[withdraw]:
		return withdraw, outcome{}
	case s.current() == nil && s.hasOtherCredential():
		return rest, waiting(addonsv1.AlreadyRegisteredReason, fmt.Sprintf(
			"its agent has checked in with a credential that Muster did not issue, and keeps it; to replace it, set the annotation %s to another value", stamp.RotateAnnotation), 0)
	case s.current() == nil && s.beingRegistered() != nil:
		return rest, waiting(addonsv1.WaitingForFleetReason, fmt.Sprintf(
			"an agent that Muster did not register asks for its credential with ClusterRegistration %q; delete that if no such agent runs, or set the annotation %s to another value", s.beingRegistered().Name, stamp.RotateAnnotation), s.pollOf(s.beingRegistered()))
	case s.current() == nil && s.isClientIDNew():
		return rest, waiting(addonsv1.WaitingForFleetReason, "Fleet may not know its clientID yet", minClientIDAge)
	case s.taken[register]:
		return rest, waiting(addonsv1.WaitingForFleetReason, "Fleet has not granted the registration yet", pollInterval)
	case s.current() != nil && (s.current().Spec.ClientID != s.fleet.Spec.ClientID || s.current().Spec.ClientRandom == ""):
		return rest, waiting(addonsv1.RegistrationConflictReason, fmt.Sprintf("ClusterRegistration %q has the name that Muster needs, but is not Muster's; delete it", s.current().Name), checkInterval)
	case s.isForAnother():
		return rest, waiting(addonsv1.RegistrationConflictReason, fmt.Sprintf(
			"Fleet assigned ClusterRegistration %q to Fleet Cluster %q, which has the same clientID; delete that Fleet Cluster, and Muster registers the cluster again",
			s.current().Name, s.current().Status.ClusterName), checkInterval)
	case s.current() != nil && !s.current().Status.Granted && s.now.Sub(s.current().CreationTimestamp.Time) >= credentialTimeout:
		return rest, waiting(addonsv1.RegistrationNotGrantedReason, s.notGranted(), checkInterval)
	case s.current() != nil && !s.current().Status.Granted:
		return rest, waiting(addonsv1.WaitingForFleetReason, "Fleet has not granted the registration yet", s.pollOf(s.current()))
	default:
		return s.nextOfSecret()
	}
}

// notGranted says why Fleet may not grant the registration, and what to do. What Fleet writes about a registration does not
// say whether it refuses it. The issued credential stays, because Fleet revokes it only when it grants another.
func (s *scope) notGranted() string {
	text := fmt.Sprintf("Fleet has not granted ClusterRegistration %q for %s: its agentmanagement controller does not work, or refuses the registration. %s refuse one without the label %s of a token, or whose clientID was registered under another token, and Muster's has no token; with such a version, let the manager register the Cluster: annotation %s: %s",
		s.current().Name, credentialTimeout, bindingVersions, fleetv1.RegistrationTokenLabel, stamp.RegistrationAnnotation, stamp.ByManager)
	if s.recorded.token != "" && s.isRegistered {
		text += "; the credential issued before stays valid"
	}
	return text
}

// bindingVersions names the versions of Fleet that bind a clientID to a token, in messages.
const bindingVersions = "Fleet 0.16.3 and later (and some later releases of older branches)"

// refusedAgent returns the registration of an agent that Fleet has installed, if Fleet has not granted it for
// credentialTimeout while Muster's earlier one exists; nil otherwise.
func (s *scope) refusedAgent() *fleetv1.ClusterRegistration {
	if s.fleet == nil || s.fleet.Spec.ClientID == "" {
		return nil
	}
	return s.byOthers(func(its *fleetv1.ClusterRegistration) bool {
		return !its.Status.Granted && s.now.Sub(its.CreationTimestamp.Time) >= credentialTimeout
	})
}

// byOthers returns the first registration of another program under this clientID that a function selects; nil if there is
// none.
func (s *scope) byOthers(selects func(*fleetv1.ClusterRegistration) bool) *fleetv1.ClusterRegistration {
	for i := range s.registrations {
		if its := &s.registrations[i]; !isOurs(*its) && its.Spec.ClientID == s.fleet.Spec.ClientID && selects(its) {
			return its
		}
	}
	return nil
}

// nextOfSecret is next for a Cluster that is registered or can be. Fleet keeps a credential for
// only 40 minutes, so everything that could prevent a manifest is checked before registering.
func (s *scope) nextOfSecret() (step, outcome) {
	switch {
	case s.agent == "":
		return rest, waiting(addonsv1.WaitingForFleetReason, fmt.Sprintf("Fleet has not created Bundle %q with its agent yet", stamp.AgentBundle(s.fleet.Name)), 0)
	case len(s.agent) > maxAgent:
		return rest, waiting(addonsv1.WaitingForFleetReason, fmt.Sprintf(
			"%s of Bundle %q is larger than %d KiB, so Muster creates no manifest from it; delete the Bundle if it is not Fleet's, otherwise give the agent fewer tolerations and variables",
			agentResource, stamp.AgentBundle(s.fleet.Name), maxAgent>>10), 0)
	case s.current() == nil && len(s.fleet.Spec.ClientID) < stamp.MinClientID:
		return rest, waiting(addonsv1.RegistrationConflictReason, fmt.Sprintf(
			"spec.clientID of Fleet Cluster %q has fewer than %d characters, so anyone could guess it and register as the cluster; set a longer one, and Muster creates a manifest", s.fleet.Name, stamp.MinClientID), 0)
	case s.current() == nil && !s.taken[dryRun]:
		return dryRun, outcome{}
	case s.refused != nil:
		return rest, *s.refused
	case s.current() == nil:
		return register, outcome{}
	case s.token() == "" && !s.taken[collect]:
		return collect, outcome{}
	case s.token() == "" && s.now.Sub(s.current().CreationTimestamp.Time) < credentialTimeout:
		return rest, waiting(addonsv1.WaitingForFleetReason, "Fleet has not handed over the credential yet", pollInterval)
	case s.token() == "":
		return rest, waiting(addonsv1.CredentialLostReason, fmt.Sprintf(
			"the cluster is registered, but neither Muster nor Fleet still has its credential; an agent that has it keeps working; to replace it, set the annotation %s to another value", stamp.RotateAnnotation), 0)
	case s.needsRecord():
		return note, outcome{}
	case !s.taken[issue]:
		return issue, outcome{}
	case !s.taken[revoke] && len(s.replaced()) > 0:
		return revoke, outcome{}
	default:
		result := outcome{
			status: metav1.ConditionTrue, reason: addonsv1.ManifestReadyReason, after: settings.UnwatchedInterval,
			message: fmt.Sprintf("the manifest for the cluster is in Secret %q, key %s", stamp.ManifestSecret(s.cluster.Name), stamp.ManifestKey),
		}
		if s.fleet.Status.Agent.LastSeen.IsZero() {
			result.after = checkInterval
		}
		return rest, result
	}
}

// nextOfEnd is next for a Cluster that the registrar does not, or no longer, register. The issued
// manifest stays as long as it works: until Fleet has installed an agent, which registers under the
// same clientID, or until the Fleet Cluster is gone.
func (s *scope) nextOfEnd() (step, outcome) {
	switch {
	case s.recorded.token != "" && s.isRegistered && s.refusedAgent() != nil:
		return rest, waiting(addonsv1.RegistrationNotGrantedReason, fmt.Sprintf(
			"Fleet has not granted ClusterRegistration %q, of the agent that it installs, for %s. %s may refuse it because its clientID was registered under another token: Muster's ClusterRegistration %q has none. The credential issued before stays valid; to keep the agent that has it, set the annotation %s: %s",
			s.refusedAgent().Name, credentialTimeout, bindingVersions, s.recorded.registrationName, stamp.RegistrationAnnotation, stamp.ByAgent), checkInterval)
	case s.recorded.token != "" && s.isRegistered && conditions.GetReason(s.cluster, addonsv1.FleetAgentManifestReadyCondition) == addonsv1.RegistrationNotGrantedReason:
		return rest, waiting(addonsv1.WaitingForFleetReason, "the agent that Fleet installs has not registered; the credential issued before stays valid", checkInterval)
	case s.recorded.token != "" && s.isRegistered:
		return rest, outcome{unchanged: true, after: checkInterval}
	case s.recorded.token != "":
		return withdraw, outcome{}
	default:
		return rest, outcome{}
	}
}

// needsRecord reports whether the record differs from the credential that the registrar is about to issue.
func (s *scope) needsRecord() bool {
	return s.recorded.registration != s.current().UID || s.recorded.token != s.token() || s.isRotated()
}

// record returns the record for the credential that the registrar is about to issue.
func (s *scope) record() record {
	result := record{token: s.token(), registration: s.current().UID, registrationName: s.current().Name, rotation: s.recorded.rotation}
	if s.isRotated() {
		result.rotation = s.rotation()
	}
	return result
}

// current returns the registration in use; nil if there is none. Unless a rotation is requested, it
// is the one that Fleet granted last.
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

// isRotated reports whether the annotation requests a new credential. Removing the annotation, or leaving it after
// the rotation, requests nothing.
func (s *scope) isRotated() bool {
	asked := s.rotation()
	return asked != "" && asked != s.recorded.rotation
}

// rotation returns the digest of the annotation that asks for a new credential; empty without one.
func (s *scope) rotation() string { return digest(s.cluster.Annotations[stamp.RotateAnnotation]) }

// isLater reports whether a registration takes precedence over another: first a granted one, then the
// one issued, then the younger. The issued one comes before age because the clocks of two API
// servers may disagree.
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

// registrationName stays the same for the same Fleet Cluster, clientID and rotation, so that the
// registrar registers only once.
func (s *scope) registrationName() string {
	parts := ""
	for _, part := range []string{string(s.fleet.UID), s.fleet.Spec.ClientID, s.rotation()} {
		parts += fmt.Sprintf("%d %s", len(part), part)
	}
	return registrationPrefix + digest(parts)[:digestLength]
}

// hasOtherCredential reports whether the agent has checked in with a credential from elsewhere, and
// no rotation is requested. Registering the cluster once more would cut that agent off.
func (s *scope) hasOtherCredential() bool {
	return !s.fleet.Status.Agent.LastSeen.IsZero() && !s.isRotated() &&
		s.byOthers(func(its *fleetv1.ClusterRegistration) bool { return its.Status.Granted }) != nil
}

// beingRegistered returns a ClusterRegistration of another program, such as the agent that Fleet
// installs, that is in progress under this clientID; nil if there is none. Before Fleet grants a
// registration, it deletes all older ones of the clientID, so a new one from the registrar would cut
// off a working agent.
func (s *scope) beingRegistered() *fleetv1.ClusterRegistration {
	if s.isRotated() {
		return nil
	}
	return s.byOthers(func(its *fleetv1.ClusterRegistration) bool {
		return !its.Status.Granted || s.now.Sub(its.CreationTimestamp.Time) < firstCheckInTimeout
	})
}

// pollOf returns how often to check a registration that Fleet has not granted. An event shows the
// grant; polling is for changes without one, and Fleet may be away for long.
func (s *scope) pollOf(registration *fleetv1.ClusterRegistration) time.Duration {
	if s.now.Sub(registration.CreationTimestamp.Time) < credentialTimeout {
		return pollInterval
	}
	return checkInterval
}

// isClientIDNew reports whether Fleet may not know the clientID yet. Fleet has seen one that was
// there when it gave the Fleet Cluster its namespace.
func (s *scope) isClientIDNew() bool {
	return s.fleet.Generation >= changed && s.now.Sub(s.known) < minClientIDAge
}

// isForAnother reports whether Fleet assigned the registration to another Fleet Cluster, found by the
// clientID, or newly made because Fleet did not know the clientID yet.
func (s *scope) isForAnother() bool {
	return s.current() != nil && s.current().Status.ClusterName != "" && s.current().Status.ClusterName != s.fleet.Name
}

// token returns the credential to issue: the one issued before for the same registration, or else the
// one that Fleet has made.
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

// replaced returns Muster's registrations other than the current one, and those that Fleet granted
// under another clientID, from before Muster took the Fleet Cluster over: Fleet itself deletes only
// registrations of the same clientID.
func (s *scope) replaced() []fleetv1.ClusterRegistration {
	var result []fleetv1.ClusterRegistration
	current := s.current().Name // It is computed outside the loop, because a tenant decides how many registrations there are.
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
