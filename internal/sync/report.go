package sync

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// errorGracePeriod is how long a passing error may last before it is reported: a restart of
	// the API server, a lost connection.
	errorGracePeriod = kinds.Patience
	// messageInterval is how often, at most, a change to only the message of
	// FleetBundlesReadyCondition is written: Fleet's messages contain counts of bundles.
	messageInterval = 15 * time.Second
)

// reporter writes the outcome of a reconcile to the CAPI Cluster itself.
type reporter struct {
	client.Client
	store    *kube.Store
	recorder events.EventRecorder
	now      func() time.Time

	failing  times // when a Cluster first met passing errors
	missing  times // when its Fleet Cluster was first seen without a namespace
	messages times // when a changed message alone was last written
}

func newReporter(writer client.Client, store *kube.Store, recorder events.EventRecorder) *reporter {
	return &reporter{Client: writer, store: store, recorder: recorder, now: time.Now}
}

// report writes the conditions of an outcome, and an event if FleetImported changes. It sends no
// request if the Cluster, as read from the store, has these conditions already. It returns the delay if the write must wait.
func (r *reporter) report(ctx context.Context, cluster *clusterv1.Cluster, result outcome) (again time.Duration, err error) {
	have := cluster.Status.Conditions
	wanted, changed := kube.Merge(have, conditionTypes, cluster.Generation, r.now(), result.given(have)...)
	if changed == nil {
		return 0, nil
	}
	if isMessageOnly(have, wanted, changed) {
		if wait := r.messages.throttle(client.ObjectKeyFromObject(cluster), r.now()); wait > 0 {
			return wait, nil
		}
	}
	now, err := kube.ApplyConditions(ctx, r, stamp.FieldManager, cluster, wanted)
	if err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if imported := meta.FindStatusCondition(wanted, addonsv1.FleetImportedCondition); imported != nil && kube.IsTurned(have, *imported) {
		r.event(cluster, imported)
	}
	return 0, r.store.Wrote(ctx, now)
}

// isMessageOnly reports whether nothing but the message of FleetBundlesReady changes.
func isMessageOnly(have, wanted []metav1.Condition, changed []string) bool {
	if !slices.Equal(changed, []string{addonsv1.FleetBundlesReadyCondition}) {
		return false
	}
	was, now := meta.FindStatusCondition(have, changed[0]), meta.FindStatusCondition(wanted, changed[0])
	return now != nil && !kube.IsTurned(have, *now) && was.Message != now.Message
}

// isBrief reports whether an error is a passing one that has not lasted long.
func (r *reporter) isBrief(key types.NamespacedName, err error) bool {
	fails := err != nil && (kube.IsPassing(err) || apierrors.IsConflict(err))
	return r.failing.lasted(key, fails, r.now()) < errorGracePeriod && fails
}

// forget drops a deleted Cluster.
func (r *reporter) forget(key types.NamespacedName) {
	for _, its := range []*times{&r.failing, &r.missing, &r.messages} {
		its.Delete(key)
	}
}

// times has one time for each of some Clusters, by their keys.
type times struct{ sync.Map }

// lasted returns how long something holds for a Cluster, and notes since when.
func (t *times) lasted(key types.NamespacedName, holds bool, now time.Time) time.Duration {
	if !holds {
		t.Delete(key)
		return 0
	}
	since, _ := t.LoadOrStore(key, now)
	return now.Sub(since.(time.Time))
}

// throttle returns how long a change to only the message must wait. If it need not wait, throttle notes that
// it is written now.
func (t *times) throttle(key types.NamespacedName, now time.Time) time.Duration {
	if last, found := t.Load(key); found {
		if wait := last.(time.Time).Add(messageInterval).Sub(now); wait > 0 {
			return wait
		}
	}
	t.Store(key, now)
	return 0
}

func (r *reporter) event(cluster *clusterv1.Cluster, condition *metav1.Condition) {
	eventType, note := corev1.EventTypeNormal, message.Short(cmp.Or(condition.Message, "the Cluster is in Fleet"), message.Note)
	switch condition.Reason {
	case addonsv1.WaitingForControlPlaneReason:
		return // Every Cluster waits, and its own events give the reason.
	case addonsv1.NameConflictReason, addonsv1.TemplateValuesUnresolvedReason, addonsv1.TooMuchMetadataReason, addonsv1.FailedReason, addonsv1.RegistrarMissingReason, addonsv1.DoubleImportReason:
		eventType = corev1.EventTypeWarning
	}
	r.recorder.Eventf(cluster, nil, eventType, condition.Reason, "Import", "%s", note)
}

// conditionTypes are the types of the conditions that the syncer writes on Clusters.
var conditionTypes = []string{addonsv1.FleetImportedCondition, addonsv1.FleetBundlesReadyCondition}

// outcome is the result that a reconcile reports on the Cluster. Conditions that are neither given nor
// kept are removed, except that the zero outcome leaves the Cluster alone.
type outcome struct {
	conditions []metav1.Condition
	// stays are the types of the conditions that stay as they are if they are not given.
	stays []string
	// isBare takes all conditions off the Cluster.
	isBare bool
	// passing leaves the status of FleetImportedCondition as it is, if there is one.
	passing bool
	// isSilent leaves all conditions as they are.
	isSilent bool
	// after is the delay until the next reconcile if no event brings the Cluster back; zero for never.
	after time.Duration
}

// isNothing reports whether the outcome leaves the Cluster alone, or takes all conditions off it.
func (o outcome) isNothing() bool { return len(o.conditions) == 0 && len(o.stays) == 0 }

// given returns the conditions of the outcome for a Cluster that has some already. A passing error does not turn FleetImported,
// and what is kept stays. Cluster API makes several generations before the Cluster is imported, which writes the last one;
// until then, a new generation alone is not written.
func (o outcome) given(have []metav1.Condition) (wanted []metav1.Condition) {
	for _, conditionType := range conditionTypes {
		old, want := meta.FindStatusCondition(have, conditionType), meta.FindStatusCondition(o.conditions, conditionType)
		switch {
		case want != nil:
			its := *want
			if old != nil && o.passing && conditionType == addonsv1.FleetImportedCondition {
				its.Status = old.Status
			}
			if old != nil && !meta.IsStatusConditionTrue(have, addonsv1.FleetImportedCondition) && !kube.IsTurned(have, its) && old.Message == message.Short(its.Message, message.Condition) {
				its.ObservedGeneration = old.ObservedGeneration
			}
			wanted = append(wanted, its)
		case old != nil && slices.Contains(o.stays, conditionType):
			wanted = append(wanted, *old)
		}
	}
	return wanted
}

// again returns the outcome with a delay after which the Cluster is reconciled again.
func (o outcome) again(after time.Duration) outcome {
	o.after = after
	return o
}

func notImported(reason, message string) outcome {
	return outcome{conditions: []metav1.Condition{
		{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message},
	}}
}

// failed is the outcome of an error. An imported Cluster stays imported: its objects in Fleet are
// unchanged, and availability gates must not close for a passing error.
func failed(err error) outcome {
	result := notImported(addonsv1.FailedReason, err.Error())
	result.stays, result.passing = conditionTypes, true
	return result
}

// groupConflict is the outcome for a Cluster whose group would have the name of the group of a class in
// the Cluster's own namespace. The objects in Fleet stay as they are.
func groupConflict(imported bool, used use, class string) outcome {
	return unchanged(imported, addonsv1.NameConflictReason, fmt.Sprintf(
		"ClusterGroup %q of this namespace is that of ClusterClass %q here, and would be that of ClusterClass %q of namespace %q: bundles for one would reach the other; rename one of the two classes",
		used.group().Name, class, used.class.Name, used.class.Namespace))
}

// paused is the outcome for a paused Cluster: in Fleet or not, as it was.
func paused(imported bool) outcome {
	return unchanged(imported, addonsv1.PausedReason, "the Cluster is paused; nothing is changed in Fleet until it is unpaused")
}

// unselected is the outcome for a Cluster that no selector matches: if it was claimed, it stays as
// it is; otherwise Muster ignores it.
func unselected(claimed, imported bool, why string) outcome {
	if !claimed {
		return outcome{isBare: true}
	}
	return unchanged(imported, addonsv1.DeselectedReason, "what Fleet has of it is kept as it was: "+why)
}

// unchanged is the outcome for a Cluster that the syncer leaves unchanged for now: in Fleet or not, as it was.
func unchanged(imported bool, reason, message string) outcome {
	result := notImported(reason, message)
	if imported {
		result.conditions[0].Status = metav1.ConditionTrue
	}
	return result
}

// unreported is the outcome for a Cluster whose FleetImported stays as it is: the Cluster is being
// deleted, the import is turned off, or the FleetAddonConfig cannot be used.
func (s *scope) unreported() outcome {
	if !s.isClaimed() {
		return outcome{}
	}
	if s.unknown { // Rancher's Fleet Clusters are not looked at.
		return outcome{stays: conditionTypes}
	}
	return outcome{stays: []string{addonsv1.FleetImportedCondition}}
}

// waitingForAgent is the outcome for a Cluster whose agent has not checked in yet. Fleet never
// installs the agent from the management side instead: the user has said that the cluster cannot, or
// must not, be reached.
func waitingForAgent(cluster string, unregistered bool) outcome {
	if unregistered {
		return notImported(addonsv1.RegistrarMissingReason,
			"its Fleet agent is to register itself, but the registrar does not run: install Muster's component registrar (manifests/registrar)").again(presenceInterval)
	}
	return notImported(addonsv1.WaitingForAgentReason, fmt.Sprintf(
		"its Fleet agent has not checked in yet; once the condition %s is True, apply the manifest in Secret %q (key %s) to the cluster, if its bootstrap does not",
		addonsv1.FleetAgentManifestReadyCondition, stamp.ManifestSecret(cluster), stamp.ManifestKey)).again(longestWait)
}

// waitingForRancher is the outcome for a Cluster that Rancher manages, or will manage, and that has no
// Fleet Cluster yet to attach to.
func waitingForRancher(what string) outcome {
	return notImported(addonsv1.WaitingForRancherReason, "it waits for "+what)
}

// attached is the outcome for a Cluster whose Fleet Cluster is Rancher's. Others are the fields of it
// that another writer has set to other values; note ends the message.
func attached(fleet types.NamespacedName, others []string, stays stale, note string) outcome {
	result := imported("", fleet.Name, stays, "")
	condition := &result.conditions[0]
	if condition.Reason == addonsv1.ImportedReason {
		condition.Reason, condition.Message = addonsv1.AttachedReason, fmt.Sprintf("in Fleet as Cluster %q of Rancher", fleet)
	}
	if len(others) > 0 {
		condition.Message += "; left as others have set it there: " + strings.Join(others, ", ")
	}
	condition.Message += note
	return result
}

// stale is a reason of FleetImportedCondition, with its message, for a Fleet Cluster of which a part stays as it is; zero
// for one that is up to date.
type stale struct{ reason, message string }

// imported is the outcome for a Cluster whose Fleet Cluster has its desired state, except for a stale part; note ends
// the message. If both have the same name, there is no message without a note: Cluster API's condition Available repeats it.
func imported(cluster, fleetCluster string, stays stale, note string) outcome {
	condition := metav1.Condition{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionTrue, Reason: addonsv1.ImportedReason}
	switch {
	case stays != (stale{}):
		condition.Reason, condition.Message = stays.reason, stays.message
	case cluster != fleetCluster:
		condition.Message = fmt.Sprintf("in Fleet as Cluster %q", fleetCluster)
	}
	condition.Message = strings.TrimPrefix(condition.Message+note, "; ")
	return outcome{conditions: []metav1.Condition{condition}}
}

// nonManagedAgent is a label on a Fleet Cluster by which Fleet leaves its agent alone: the Bundle with the agent has no target
// there. Fleet has no name for it (newAgentBundle of its controller manageagent).
const nonManagedAgent = "fleet.cattle.io/non-managed-agent"

// bundlesReady makes FleetBundlesReadyCondition from a Fleet Cluster's Ready condition.
type bundlesReady struct {
	// staleAfter is how long an agent may be silent before Fleet's status of its cluster no longer
	// counts.
	staleAfter time.Duration
	now        func() time.Time
}

// of adds the mirrored condition to the outcome of a reconcile, if the Cluster has a Fleet Cluster.
// The next reconcile is due when the agent has been silent for too long: heartbeats alone trigger
// none.
func (m bundlesReady) of(s *scope, result outcome) outcome {
	fleet := s.fleet
	if !s.has() {
		fleet = s.attached
	}
	if fleet == nil || result.isNothing() || result.isSilent {
		return result
	}
	condition := m.condition(fleet)
	if s.has() && !s.namespace.isThere && (condition.Status == metav1.ConditionTrue || !s.namespace.isExpected()) {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, addonsv1.WaitingForFleetReason, s.namespace.message()
	}
	result.conditions = append(result.conditions, condition)
	return result.again(kube.Sooner(result.after, m.untilStale(fleet)))
}

// untilStale returns how long the agent of a Fleet Cluster may stay silent from now on; zero if the
// agent is stale or never checked in.
func (m bundlesReady) untilStale(live *fleetv1.Cluster) time.Duration {
	if live.Status.Agent.LastSeen.IsZero() {
		return 0
	}
	return max(0, live.Status.Agent.LastSeen.Add(m.staleAfter).Sub(m.now()))
}

// isStale reports whether the agent of a Fleet Cluster checked in once, and has been silent for too
// long since.
func (m bundlesReady) isStale(live *fleetv1.Cluster) bool {
	return !live.Status.Agent.LastSeen.IsZero() && m.untilStale(live) == 0
}

func (m bundlesReady) condition(live *fleetv1.Cluster) metav1.Condition {
	if m.isStale(live) {
		return metav1.Condition{
			Type: addonsv1.FleetBundlesReadyCondition, Status: metav1.ConditionUnknown, Reason: addonsv1.AgentStaleReason,
			// The message omits the time. An agent whose clock is slow is always stale, and each of
			// its reports would change the message.
			Message: fmt.Sprintf("Fleet's agent has not reported for more than %s, by the cluster's own clock; look at that clock, at the fleet-agent on the cluster, and at its way to the management cluster",
				m.staleAfter),
		}
	}
	result := metav1.Condition{
		Type: addonsv1.FleetBundlesReadyCondition, Status: metav1.ConditionUnknown, Reason: addonsv1.WaitingForFleetReason,
		Message: "Fleet has not reported on the Cluster's bundles yet",
	}
	// Fleet's Ready is True while it deploys nothing. The status goes with the Fleet Cluster, so an earlier one's agent
	// does not count.
	agents := 1
	if live.Labels[fleetv1.ClusterManagementLabel] != "" || metav1.HasLabel(live.ObjectMeta, nonManagedAgent) { // Fleet deploys no agent there.
		agents = 0
	}
	switch {
	case live.Status.Agent.LastSeen.IsZero() && live.Status.Summary.Ready == 0: // Fleet may write over the first report; what is ready was reported, too.
		result.Reason, result.Message = addonsv1.AgentNotSeenReason, "Fleet's agent has not reported from the cluster yet; the conditions and events of the Fleet Cluster say why, if Fleet could not install it"
		return result
	case live.Status.Summary.DesiredReady < agents:
		result.Reason, result.Message = addonsv1.AgentNotSeenReason, "Fleet does not count the Bundle with its agent among those of the cluster yet"
		return result
	}
	for _, condition := range live.Status.Conditions {
		if condition.Type != "Ready" {
			continue
		}
		result.Message = condition.Message
		switch condition.Status {
		case corev1.ConditionTrue:
			result.Status, result.Reason = metav1.ConditionTrue, addonsv1.BundlesReadyReason
			if live.Status.Summary.DesiredReady == agents {
				result.Message = "0 bundles besides Fleet's agent"
			}
		case corev1.ConditionFalse:
			result.Status = metav1.ConditionFalse
			result.Reason, result.Message = addonsv1.BundlesNotReadyReason, cmp.Or(condition.Message, "Fleet reports the Cluster's bundles as not ready")
		}
	}
	return result
}
