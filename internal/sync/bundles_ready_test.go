package sync

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// seenAt returns a Fleet Cluster with this Ready condition, whose agent was last seen at born plus
// this time; zero for never.
func seenAt(after time.Duration, status corev1.ConditionStatus, message string) *fleetv1.Cluster {
	live := &fleetv1.Cluster{}
	live.Spec.KubeConfigSecret = "prod-kubeconfig"
	live.Status.Summary.DesiredReady = 2 // Fleet's own Bundle with its agent, and a user's.
	if after > 0 {
		live.Status.Agent.LastSeen = metav1.NewTime(born.Add(after))
	}
	if status != "" {
		live.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: status, Message: message}}
	}
	return live
}

func TestBundlesReady(t *testing.T) {
	const stale = "Fleet's agent has not reported for more than 30m0s, by the cluster's own clock; look at that clock, at the fleet-agent on the cluster, and at its way to the management cluster"
	// The agent may be silent for half an hour, and it is 2:00.
	m := bundlesReady{staleAfter: 30 * time.Minute, now: func() time.Time { return born.Add(2 * time.Hour) }}
	const unseen = "Fleet's agent has not reported from the cluster yet; the conditions and events of the Fleet Cluster say why, if Fleet could not install it"
	counts := func(bundles int, managed string, live *fleetv1.Cluster) *fleetv1.Cluster {
		live.Status.Summary.DesiredReady = bundles
		live.Labels = map[string]string{fleetv1.ClusterManagementLabel: managed}
		return live
	}
	reported := func(live *fleetv1.Cluster) *fleetv1.Cluster {
		live.Status.Summary = fleetv1.BundleSummary{DesiredReady: 2, Ready: 2}
		return live
	}
	unmanaged := func(live *fleetv1.Cluster) *fleetv1.Cluster {
		live.Labels = map[string]string{"fleet.cattle.io/non-managed-agent": ""}
		live.Status.Summary.DesiredReady = 0
		return live
	}
	for name, test := range map[string]struct {
		live            *fleetv1.Cluster
		status          metav1.ConditionStatus
		reason, message string
		untilStale      time.Duration
	}{
		"nothing is said yet":                        {seenAt(0, "", ""), "Unknown", "AgentNotSeen", unseen, 0},
		"nothing is said after a report":             {seenAt(2*time.Hour, "", ""), "Unknown", "WaitingForFleet", "Fleet has not reported on the Cluster's bundles yet", 30 * time.Minute},
		"never checked in":                           {seenAt(0, "False", "WaitApplied(1)"), "Unknown", "AgentNotSeen", unseen, 0},
		"never checked in, and no bundle":            {counts(0, "", seenAt(0, "True", "")), "Unknown", "AgentNotSeen", unseen, 0},
		"its report was lost, and bundles are ready": {reported(seenAt(0, "True", "")), "True", "BundlesReady", "", 0},
		"the agent has no Bundle yet": {counts(0, "", seenAt(2*time.Hour, "True", "")), "Unknown", "AgentNotSeen",
			"Fleet does not count the Bundle with its agent among those of the cluster yet", 30 * time.Minute},
		"the agent never has one":            {counts(0, "true", seenAt(2*time.Hour, "True", "")), "True", "BundlesReady", "0 bundles besides Fleet's agent", 30 * time.Minute},
		"the agent is not Fleet's to manage": {unmanaged(seenAt(2*time.Hour, "True", "")), "True", "BundlesReady", "0 bundles besides Fleet's agent", 30 * time.Minute},
		"only the agent":                     {counts(1, "", seenAt(2*time.Hour, "True", "")), "True", "BundlesReady", "0 bundles besides Fleet's agent", 30 * time.Minute},
		"only the agent, which is not fit":   {counts(1, "", seenAt(2*time.Hour, "False", "WaitApplied(1)")), "False", "BundlesNotReady", "WaitApplied(1)", 30 * time.Minute},
		"ready":                              {seenAt(2*time.Hour, "True", ""), "True", "BundlesReady", "", 30 * time.Minute},
		"not ready":                          {seenAt(2*time.Hour-time.Minute, "False", "NotReady(1)"), "False", "BundlesNotReady", "NotReady(1)", 29 * time.Minute},
		"silent, a second short":             {seenAt(90*time.Minute+time.Second, "True", ""), "True", "BundlesReady", "", time.Second},
		"silent for too long":                {seenAt(time.Hour, "True", ""), "Unknown", "AgentStale", stale, 0},
		"silent for too long, and not fit":   {seenAt(time.Hour, "False", "NotReady(1)"), "Unknown", "AgentStale", stale, 0},
		"its clock is ahead":                 {seenAt(3*time.Hour, "True", ""), "True", "BundlesReady", "", 90 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			got := m.condition(test.live)
			if got.Status != test.status || got.Reason != test.reason || got.Message != test.message {
				t.Errorf("got %s, %s, %q", got.Status, got.Reason, got.Message)
			}
			if wait := m.untilStale(test.live); wait != test.untilStale {
				t.Errorf("it is looked at again after %s, want %s", wait, test.untilStale)
			}
		})
	}
}

// Thousands of agents call every few minutes. Only heartbeats that change the mirrored condition may
// wake a Cluster.
func TestHeartbeatsThatWake(t *testing.T) {
	news := fleetClusterNews(bundlesReady{staleAfter: 30 * time.Minute, now: func() time.Time { return born.Add(2 * time.Hour) }})
	for name, test := range map[string]struct {
		before, after time.Duration
		wakes         bool
	}{
		"the first":          {0, 2 * time.Hour, true},
		"the first for long": {time.Hour, 2 * time.Hour, true},
		"one of many":        {2*time.Hour - 15*time.Minute, 2 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := news.Update(event.UpdateEvent{ObjectOld: seenAt(test.before, "True", ""), ObjectNew: seenAt(test.after, "True", "")})
			if got != test.wakes {
				t.Errorf("it wakes: %v", got)
			}
		})
	}
}

// Known: with manageAgent: false in Fleet's own settings, Fleet makes no Bundle with an agent, and Muster counts a user's as
// that. It is left because the syncer would need the right to read those settings; the label on a Fleet Cluster has the same
// effect, and Muster knows it.
func TestKnownWithoutAgentsOfFleet(t *testing.T) {
	m := bundlesReady{staleAfter: 30 * time.Minute, now: func() time.Time { return born.Add(2 * time.Hour) }}
	for bundles, want := range []string{
		"AgentNotSeen: Fleet does not count the Bundle with its agent among those of the cluster yet",
		"BundlesReady: 0 bundles besides Fleet's agent",
		"BundlesReady: ",
	} {
		live := seenAt(2*time.Hour, "True", "")
		live.Status.Summary.DesiredReady = bundles
		if got := m.condition(live); got.Reason+": "+got.Message != want {
			t.Errorf("%d bundles: %s: %s", bundles, got.Reason, got.Message)
		}
	}
}
