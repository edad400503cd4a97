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
	for name, test := range map[string]struct {
		live            *fleetv1.Cluster
		status          metav1.ConditionStatus
		reason, message string
		untilStale      time.Duration
	}{
		"nothing is said yet":              {seenAt(0, "", ""), "Unknown", "WaitingForFleet", "Fleet has not reported on the Cluster's bundles yet", 0},
		"never checked in":                 {seenAt(0, "False", "WaitCheckIn"), "False", "BundlesNotReady", "WaitCheckIn", 0},
		"ready":                            {seenAt(2*time.Hour, "True", ""), "True", "BundlesReady", "", 30 * time.Minute},
		"not ready":                        {seenAt(2*time.Hour-time.Minute, "False", "NotReady(1)"), "False", "BundlesNotReady", "NotReady(1)", 29 * time.Minute},
		"silent, a second short":           {seenAt(90*time.Minute+time.Second, "True", ""), "True", "BundlesReady", "", time.Second},
		"silent for too long":              {seenAt(time.Hour, "True", ""), "Unknown", "AgentStale", stale, 0},
		"silent for too long, and not fit": {seenAt(time.Hour, "False", "NotReady(1)"), "Unknown", "AgentStale", stale, 0},
		"its clock is ahead":               {seenAt(3*time.Hour, "True", ""), "True", "BundlesReady", "", 90 * time.Minute},
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
