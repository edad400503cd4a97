package rollout

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func inNS(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

// held is a working release that waits for the change v2.
func held(stage int, name string, changes ...func(*Target)) Target {
	t := Target{Cluster: inNS(name), Stage: stage, Pending: "v2", Granted: "v1", Approved: "v1", Available: true, Ready: now.Add(-24 * time.Hour)}
	for _, change := range changes {
		change(&t)
	}
	return t
}

// granted is a release that may get the change v2, and has not begun.
func granted(stage int, name string, changes ...func(*Target)) Target {
	return held(stage, name, append([]func(*Target){func(t *Target) { t.Granted, t.Approved = "v2", "v2" }}, changes...)...)
}

// moving is a release that is being updated to v2.
func moving(stage int, name string, changes ...func(*Target)) Target {
	return granted(stage, name, append([]func(*Target){func(t *Target) { t.Pending, t.Ready, t.Available = "", time.Time{}, false }}, changes...)...)
}

// updated is a release that has been ready with v2 for a time.
func updated(stage int, name string, since time.Duration, changes ...func(*Target)) Target {
	return granted(stage, name, append([]func(*Target){func(t *Target) { t.Pending, t.Ready = "", now.Add(-since) }}, changes...)...)
}

func failed(t *Target)    { t.Failed = true }
func down(t *Target)      { t.Available = false }
func regressed(t *Target) { t.Regressed = true }
func offline(t *Target)   { t.Offline, t.Available = true, false }
func aside(t *Target)     { t.Aside = "paused" }
func unknown(t *Target)   { t.Unknown = true }
func approved(t *Target)  { t.Approved = t.Pending }
func blocked(t *Target)   { t.Blocked = true }

func pending(hash string) func(*Target) { return func(t *Target) { t.Pending = hash } }

// The expectations are from the description of rollouts, and not from the code.
func TestNext(t *testing.T) {
	hash := func(parts []string) string { return strings.Join(parts, " ") }
	canary := Stage{Name: "canary", MaxUnavailable: 1, Soak: time.Hour}
	manual := Stage{Name: "prod", MaxUnavailable: 9, Manual: true}
	tolerant := Stage{Name: "prod", MaxUnavailable: 3, MaxFailing: 1}
	rest := Stage{MaxUnavailable: 9}
	long := 2 * time.Hour

	for name, test := range map[string]struct {
		stages   []Stage
		targets  []Target
		approval string
		want     Decision // Counts are compared if they are set.
		move     string
		approve  string
	}{
		"a change reaches the first stage": {targets: []Target{held(0, "a"), held(1, "b")},
			move: "a", want: Decision{Reason: Progressing, Message: "waits for ns/a", Counts: []Count{{Clusters: 1, Held: 1}, {Clusters: 1, Held: 1}}}},
		"a stage waits for a Cluster that may get the change": {targets: []Target{granted(0, "a"), held(1, "b")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"a stage waits for a Cluster that is being updated": {targets: []Target{moving(0, "a"), held(1, "b")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a", Counts: []Count{{Clusters: 1}, {Clusters: 1, Held: 1}}}},
		"a stage soaks until the last of its Clusters has been ready for the soak time": {targets: []Target{updated(0, "a", 50*time.Minute), updated(0, "b", 20*time.Minute), held(1, "c")},
			want: Decision{Reason: Soaking, Message: "every Cluster must be ready for 1h0m0s", Again: 40 * time.Minute,
				Counts: []Count{{Clusters: 2, Updated: 2}, {Clusters: 1, Held: 1}}}},
		"the next stage begins when the soak time ends": {targets: []Target{updated(0, "a", time.Hour), held(1, "b")},
			move: "b", want: Decision{Stage: 1, Reason: Progressing, Message: "waits for ns/b"}},
		"the last stage soaks, too": {stages: []Stage{canary}, targets: []Target{updated(0, "a", time.Minute)},
			want: Decision{Reason: Soaking, Message: "every Cluster must be ready for 1h0m0s", Again: 59 * time.Minute}},
		"all have the change": {targets: []Target{updated(0, "a", long), updated(1, "b", 0)},
			want: Decision{Reason: Completed, Counts: []Count{{Clusters: 1, Updated: 1}, {Clusters: 1, Updated: 1}}}},
		"the values of one Cluster change": {targets: []Target{updated(0, "a", long), held(1, "b"), updated(1, "c", long)},
			move: "b", want: Decision{Stage: 1, Reason: Progressing, Message: "waits for ns/b"}},
		"the values of several Clusters change, each in its own way": {targets: []Target{held(0, "a", pending("x")), updated(0, "b", long), held(1, "c", pending("y"))},
			move: "a", want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"a Cluster that may have an unreported change closes its stage": {targets: []Target{updated(0, "a", long, unknown), held(1, "b")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"nothing moves to an unreported change": {targets: []Target{held(0, "a", unknown)},
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},

		"no more Clusters than allowed move": {targets: []Target{held(0, "b"), held(0, "a")},
			move: "a", want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b"}},
		"a Cluster that may move counts as unavailable": {targets: []Target{granted(0, "a"), held(0, "b")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b"}},
		"a Cluster that works, but has not been ready, counts as unavailable": {targets: []Target{moving(0, "a", func(t *Target) { t.Available = true }), held(0, "b")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b"}},
		"a Cluster that is unavailable anyway moves, and leaves no room for another": {targets: []Target{held(0, "a"), held(0, "b", down), held(0, "c", down)},
			move: "b c", want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b, ns/c"}},
		"a message names five Clusters": {targets: []Target{held(0, "f"), held(0, "e"), held(0, "d"), held(0, "c"), held(0, "b"), held(0, "a")},
			move: "a", want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b, ns/c, ns/d, ns/e, and 1 more"}},
		"an empty stage is done at once": {stages: []Stage{canary, canary, rest}, targets: []Target{held(2, "a"), held(2, "b")},
			move: "a b", want: Decision{Stage: 2, Reason: Progressing, Message: "waits for ns/a, ns/b", Counts: []Count{{}, {}, {Clusters: 2, Held: 2}}}},
		"it is said without which Clusters, and why": {
			targets: []Target{updated(0, "a", long), held(1, "d", offline), moving(0, "b", func(t *Target) { t.Aside = "not installed yet" }), held(1, "e", aside), updated(1, "c", long, aside)},
			move:    "d", want: Decision{Reason: Completed, Without: "1 not installed yet: ns/b; 1 offline: ns/d; 2 paused: ns/c, ns/e"}},
		"no Clusters": {want: Decision{Reason: Completed}},

		"an offline Cluster never blocks, whatever state it has": {targets: []Target{moving(0, "a", offline), updated(0, "b", long), updated(0, "c", 0, offline), held(1, "d")},
			move: "d", want: Decision{Stage: 1, Reason: Progressing, Message: "waits for ns/d",
				Counts: []Count{{Clusters: 3, Updated: 2, Offline: 2}, {Clusters: 1, Held: 1}}}},
		"an offline Cluster catches up alone, and leaves its room to others": {targets: []Target{held(0, "a", offline), held(0, "b")},
			move: "a b", want: Decision{Reason: Progressing, Message: "waits for ns/b"}},
		"an offline Cluster of a later stage waits for the gate": {targets: []Target{moving(0, "a"), held(1, "b", offline)},
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"a rollout is complete without offline Clusters": {targets: []Target{granted(0, "a", offline), updated(1, "b", long)},
			want: Decision{Reason: Completed, Counts: []Count{{Clusters: 1, Offline: 1}, {Clusters: 1, Updated: 1}}}},
		"the rollout waits for a Cluster that is back": {targets: []Target{granted(0, "a"), updated(0, "b", long), held(1, "c")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"new, paused and deselected Clusters neither block nor move": {targets: []Target{moving(0, "a", aside), held(0, "b", aside), moving(0, "c", aside, failed), held(1, "d")},
			move: "d", want: Decision{Stage: 1, Reason: Progressing, Message: "waits for ns/d", Counts: []Count{{Clusters: 3}, {Clusters: 1, Held: 1}}}},

		"the change fails": {targets: []Target{moving(0, "a", failed), held(0, "b"), held(1, "c")},
			want: Decision{Reason: Halted, Message: "the change fails on ns/a", Counts: []Count{{Clusters: 2, Held: 1, Failing: 1}, {Clusters: 1, Held: 1}}}},
		"the change fails in a later stage: the first halts, too": {targets: []Target{held(0, "a"), moving(1, "b", failed)},
			want: Decision{Stage: 1, Reason: Halted, Message: "the change fails on ns/b"}},
		"the change fails on as many as allowed": {stages: []Stage{tolerant, rest}, targets: []Target{moving(0, "a", failed), held(0, "b"), held(1, "c")},
			move: "b", want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b"}},
		"the change fails on more than allowed": {stages: []Stage{tolerant, rest}, targets: []Target{moving(0, "a", failed), moving(0, "b", failed), held(0, "c"), held(1, "d")},
			want: Decision{Reason: Halted, Message: "the change fails on ns/a, ns/b"}},
		"a regression halts, however many may fail": {stages: []Stage{tolerant, rest}, targets: []Target{moving(0, "a", regressed), held(0, "b"), held(1, "c")},
			want: Decision{Reason: Halted, Message: "no longer ready while its stage was soaking: ns/a"}},
		"a failure and a regression are both named": {stages: []Stage{tolerant},
			targets: []Target{moving(0, "a", regressed), moving(0, "b", failed), held(0, "c")},
			want:    Decision{Reason: Halted, Message: "the change fails on ns/b; no longer ready while its stage was soaking: ns/a"}},
		"a regression halts the rollout until a retry": {targets: []Target{updated(0, "a", long, regressed), held(1, "b")},
			want: Decision{Reason: Halted, Message: "no longer ready while its stage was soaking: ns/a"}},
		"after a retry the rollout continues": {targets: []Target{updated(0, "a", long), held(1, "b")},
			move: "b", want: Decision{Stage: 1, Reason: Progressing, Message: "waits for ns/b"}},
		"after a retry the rollout waits for a Cluster that is not ready": {targets: []Target{moving(0, "a"), held(1, "b")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"a later failure does not affect Clusters that already have the change": {targets: []Target{updated(0, "a", long, failed), updated(1, "b", long)},
			want: Decision{Reason: Completed}},
		"in a halted rollout no Cluster is updated, not even an offline one": {targets: []Target{updated(0, "a", long, regressed), held(1, "b", offline)},
			want: Decision{Reason: Halted, Message: "no longer ready while its stage was soaking: ns/a"}},
		"after a new change the rollout continues, at the first stage": {targets: []Target{held(0, "a", failed, down, pending("v3")), held(1, "b", failed, pending("v3"))},
			move: "a", want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"a new change during a rollout begins at the first stage": {targets: []Target{granted(0, "a", pending("v3")), granted(1, "b", pending("v3")), held(1, "c", pending("v3"))},
			move: "a", want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"Clusters that have moved already count": {targets: []Target{updated(0, "a", long), updated(0, "b", long), granted(0, "c", pending("v3")), held(1, "d", pending("v3"))},
			move: "c", want: Decision{Reason: Progressing, Message: "waits for ns/c"}},
		"the first stage waits for a Cluster that a label moves there": {targets: []Target{updated(0, "a", long), held(0, "b"), held(1, "c")},
			move: "b", want: Decision{Reason: Progressing, Message: "waits for ns/b"}},
		"a Cluster that a label moves to a later stage waits there": {targets: []Target{updated(0, "a", time.Minute), held(1, "b")},
			want: Decision{Reason: Soaking, Message: "every Cluster must be ready for 1h0m0s", Again: 59 * time.Minute}},

		"a stage waits for approval": {stages: []Stage{rest, manual}, targets: []Target{updated(0, "a", long), held(1, "c", pending("v3")), held(1, "b")},
			want: Decision{Stage: 1, Reason: WaitingForApproval, Message: "approve the change for ns/b, ns/c", Approval: "prod ns/b v2 ns/c v3"}},
		"approval is noted for all before any moves": {stages: []Stage{manual}, targets: []Target{held(0, "a"), held(0, "b")}, approval: "prod ns/a v2 ns/b v2",
			approve: "a b", want: Decision{Reason: Progressing, Message: "the change is approved for ns/a, ns/b"}},
		"the program stopped while it noted approval": {stages: []Stage{manual}, targets: []Target{held(0, "a", approved), held(0, "b")}, approval: "prod ns/a v2 ns/b v2",
			approve: "b", want: Decision{Reason: Progressing, Message: "the change is approved for ns/b"}},
		"approved Clusters move, whatever the annotation has now": {stages: []Stage{manual}, targets: []Target{held(0, "a", approved), held(0, "b", approved)}, approval: "another",
			move: "a b", want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b"}},
		"approval of one change does not approve another": {stages: []Stage{manual}, targets: []Target{held(0, "a", approved, pending("v3"))}, approval: "prod ns/a v2",
			want: Decision{Reason: WaitingForApproval, Message: "approve the change for ns/a", Approval: "prod ns/a v3"}},
		"approval for one Cluster does not approve another": {stages: []Stage{manual}, targets: []Target{held(0, "a", approved), held(0, "b")}, approval: "prod ns/a v2",
			move: "a", want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b"}},
		"approval does not open a gate": {stages: []Stage{rest, manual}, targets: []Target{moving(0, "a"), held(1, "b", approved)}, approval: "prod ns/b v2",
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"nothing is approved once halted": {stages: []Stage{rest, manual}, targets: []Target{updated(0, "a", 0, regressed), held(1, "b")}, approval: "prod ns/b v2",
			want: Decision{Reason: Halted, Message: "no longer ready while its stage was soaking: ns/a"}},
		"a Cluster whose template fails does not keep others from approval": {stages: []Stage{{MaxUnavailable: 9, MaxFailing: 1, Manual: true}},
			targets: []Target{held(0, "a", approved, blocked), held(0, "b")},
			want:    Decision{Reason: WaitingForApproval, Message: "approve the change for ns/b", Approval: " ns/b v2"}},
		"an offline Cluster with an unreported change does not keep others from approval": {stages: []Stage{manual},
			targets: []Target{held(0, "a", offline, unknown, approved), held(0, "b")},
			want:    Decision{Reason: WaitingForApproval, Message: "approve the change for ns/b", Approval: "prod ns/b v2"}},
		"a change that fails, and silences the agent, is halted": {targets: []Target{{Cluster: inNS("a"), Failed: true, Offline: true}, held(1, "b")},
			want: Decision{Reason: Halted, Message: "the change fails on ns/a", Without: "1 offline: ns/a"}},
		"a change that cannot be rendered is halted": {targets: []Target{{Cluster: inNS("a"), Blocked: true, Available: true, Ready: now}, held(1, "b")},
			want: Decision{Reason: Halted, Message: "the change fails on ns/a"}},
		"a release that cannot be rendered keeps what it has, and takes no room": {stages: []Stage{{MaxUnavailable: 1, MaxFailing: 1}},
			targets: []Target{{Cluster: inNS("a"), Blocked: true, Available: true, Ready: now}, held(0, "b")}, move: "b",
			want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b"}},
		"a release whose values cannot be written keeps what it has, and takes no room": {stages: []Stage{{MaxUnavailable: 1, MaxFailing: 1}},
			targets: []Target{granted(0, "a", blocked), held(0, "b")}, move: "b",
			want: Decision{Reason: Progressing, Message: "waits for ns/a, ns/b", Counts: []Count{{Clusters: 2, Held: 1, Failing: 1}}}},
		"the values of more releases cannot be written than may fail": {stages: []Stage{{MaxUnavailable: 9, MaxFailing: 1}},
			targets: []Target{granted(0, "a", blocked), granted(0, "b", blocked), held(0, "c")},
			want:    Decision{Reason: Halted, Message: "the change fails on ns/a, ns/b"}},
		"a Cluster that no longer works closes the gate": {targets: []Target{{Cluster: inNS("a"), Ready: now.Add(-2 * time.Hour)}, held(1, "b")},
			want: Decision{Reason: Progressing, Message: "waits for ns/a"}},
		"an offline Cluster needs approval, and does not block": {stages: []Stage{manual, rest}, targets: []Target{held(0, "a", offline), held(1, "b")},
			move: "b", want: Decision{Stage: 1, Reason: Progressing, Message: "waits for ns/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.stages == nil {
				test.stages = []Stage{canary, rest}
			}
			test.want.Move, test.want.Approve = clustersOf(test.move), clustersOf(test.approve)
			got := Next(test.stages, test.targets, test.approval, hash, now)
			if test.want.Without == "" {
				got.Without = ""
			}
			if test.want.Counts == nil {
				got.Counts = nil
			}
			for i := range test.want.Counts {
				test.want.Counts[i].Name = test.stages[i].Name
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("unexpected decision (-want +got):\n%s", diff)
			}
		})
	}
}

func clustersOf(list string) []types.NamespacedName {
	var result []types.NamespacedName
	for _, name := range strings.Fields(list) {
		result = append(result, inNS(name))
	}
	return result
}
