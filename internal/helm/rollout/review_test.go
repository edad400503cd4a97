package rollout

import (
	"strings"
	"testing"
	"time"
)

func TestReviewStaleGrant(t *testing.T) {
	now := time.Now()
	stages := []Stage{{Name: "a", MaxUnavailable: 1}}
	a := Target{Cluster: inNS("a"), Pending: "h", Available: true, Ready: now.Add(-time.Hour)}
	b := a
	b.Cluster = inNS("b")
	join := func(p []string) string { return strings.Join(p, ",") }
	a.Unknown = true
	first := Next(stages, []Target{a, b}, "", join, now)
	a.Unknown = false // b.Granted is not in the cache yet.
	second := Next(stages, []Target{a, b}, "", join, now)
	t.Log(first.Move, second.Move)
	if len(first.Move) == 1 && len(second.Move) == 1 && first.Move[0] != second.Move[0] {
		t.Error("two move")
	}
}

// A change that cuts the agents off passes every stage.
func TestReviewCutOff(t *testing.T) {
	now := time.Now()
	stages := []Stage{{Name: "canary", MaxUnavailable: 9, Soak: time.Hour}, {Name: "all", MaxUnavailable: 9}}
	gone := Target{Cluster: inNS("a"), Offline: true} // took it over, never ready, agent silent since
	gone2 := Target{Cluster: inNS("b"), Offline: true}
	prod := Target{Cluster: inNS("c"), Stage: 1, Pending: "h", Available: true, Ready: now.Add(-time.Hour)}
	d := Next(stages, []Target{gone, gone2, prod}, "", func(p []string) string { return "" }, now)
	t.Logf("%+v", d)
	if len(d.Move) > 0 {
		t.Error("the change that cut off each canary goes on to production")
	}
}
