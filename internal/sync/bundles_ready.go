package sync

import (
	"cmp"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
)

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
		fleet = s.rancher
	}
	if fleet == nil || result.isNothing() || result.unsaid {
		return result
	}
	condition := m.condition(fleet)
	if s.has() && !s.home.isThere && (condition.Status == metav1.ConditionTrue || !s.home.isExpected()) {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, addonsv1.WaitingForFleetReason, s.home.message()
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
