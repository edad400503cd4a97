// Package rollout decides which releases of a HelmChartProxy may get a change next. It is pure: its inputs are the
// stages, the observed state of each release, and the time.
package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/message"
)

// Stage is a group of Clusters that get a change at the same time.
type Stage struct {
	// Name is empty for the Clusters that no stage selects.
	Name string
	// MaxUnavailable is how many Clusters may be without a working release because of the rollout; at least 1.
	MaxUnavailable int
	// Soak is how long each Cluster must have been ready before the next stage begins.
	Soak time.Duration
	// Manual says that each change needs to be approved.
	Manual bool
	// MaxFailing is the number of Clusters on which a change may fail.
	MaxFailing int
}

// Target is the observed state of a release.
type Target struct {
	Cluster types.NamespacedName
	// Stage is the index of its stage.
	Stage int
	// Unknown says that the release may have a change that it has not reported yet.
	Unknown bool
	// Pending is the hash of the change that the release waits for; empty if it already has the wanted state.
	Pending string
	// Approved is the hash of the change that a person approved last, and Granted is the hash of the change that
	// the release may get.
	Approved, Granted string
	// Ready is since when the release has been ready with its current state; zero if it has not been ready, or
	// ceased to be while its stage was soaking.
	Ready time.Time
	// Available says that the release works, with whichever state.
	Available bool
	// Failed says that the wanted state could not be deployed, and Blocked that the values do not render, or cannot be
	// written, so that the release keeps its last state.
	Failed, Blocked bool
	// Regressed says that the release ceased to be ready while its stage was soaking.
	Regressed bool
	// Failure is the hash of a failure of the current state that a person may excuse; empty for none.
	Failure string
	// Since is when the release got its current state; zero if it has had that state since before spec.rollout was
	// set.
	Since time.Time
	// Returns says that the change that the release waits for is the state that it had when the rollout was last completed.
	Returns bool
	// Offline says that the agent is silent.
	Offline bool
	// Aside says why the release does not take part in the rollout, such as "not installed yet"; empty if it does.
	Aside string
}

// isHeld reports whether the release waits for its turn.
func (t Target) isHeld() bool { return t.Pending != "" && t.Granted != t.Pending }

// isFree reports whether the release could be updated: it waits for its turn, and its change is known.
func (t Target) isFree() bool { return t.isHeld() && !t.Unknown && !t.Blocked }

// IsMoving reports whether the release may get the wanted state, and has not been ready with it yet.
func (t Target) IsMoving() bool {
	return !t.isHeld() && (t.Pending != "" && !t.Blocked || t.Ready.IsZero())
}

// isFailing reports whether the wanted state fails. A failure of a release that waits for another state does not
// count, because it concerns the last state.
func (t Target) isFailing() bool {
	return t.Blocked || t.isRegressed() || t.Pending == "" && t.Failed // The failed change may be the reason why the agent is silent.
}

func (t Target) isRegressed() bool { return t.Pending == "" && t.Regressed }

func (t Target) isOffline() bool { return t.Offline }

// isUpdated reports whether the release has been ready with the wanted state.
func (t Target) isUpdated() bool { return !t.Blocked && t.Pending == "" && !t.Ready.IsZero() }

// isUnavailable reports whether the Cluster counts as being without a working release.
func (t Target) isUnavailable() bool { return !t.Offline && (t.IsMoving() || !t.Available) }

// The reasons of the condition RolloutCompleted say what a rollout waits for.
const (
	Completed          = addonsv1.RolloutCompletedReason
	Progressing        = addonsv1.RolloutProgressingReason
	Soaking            = addonsv1.RolloutSoakingReason
	WaitingForApproval = addonsv1.RolloutWaitingForApprovalReason
	Halted             = addonsv1.RolloutHaltedReason
)

// Count is the state of a stage.
type Count = addonsv1.RolloutStageStatus

// Decision is what happens next.
type Decision struct {
	// Move are the releases that may get the change that they wait for.
	Move []types.NamespacedName
	// Approve are the releases whose change a person has just approved. The caller notes that for all of them before any
	// release moves.
	Approve []types.NamespacedName
	// Stage is the index of the stage that the rollout waits for, Reason why, and Message the details.
	Stage           int
	Reason, Message string
	// Approval is the hash of the changes that wait for approval, and Retry that of the failures that a person may excuse.
	Approval, Retry string
	// Again is the time until a soak time ends; zero for none.
	Again  time.Duration
	Counts []Count
	// Without names the Clusters without which the rollout continues, and why; empty for none.
	Without string
	// Since is when a release last got a new state.
	Since time.Time
}

// Next decides what happens next. Approval is the hash of the changes that a person approves, and hash computes
// such a hash.
//
// A stage begins once each release of the earlier stages has the state that it currently should have, and has been
// ready with it for the soak time. So a new change during a rollout begins at the first stage, and releases that
// already have it count. A release that goes back to the state of the last completed rollout waits for no stage
// and no approval.
func Next(stages []Stage, targets []Target, approval string, hash func(parts []string) string, now time.Time) Decision {
	members := make([][]Target, len(stages))
	d := Decision{Counts: make([]Count, len(stages))}
	for _, its := range targets {
		d.Counts[its.Stage].Clusters++
		if its.Aside == "" {
			members[its.Stage] = append(members[its.Stage], its)
			if its.Since.After(d.Since) {
				d.Since = its.Since
			}
		}
	}
	for i, stage := range stages {
		slices.SortFunc(members[i], func(a, b Target) int { return cmp.Compare(a.Cluster.String(), b.Cluster.String()) })
		its := &d.Counts[i]
		its.Name, its.Held, its.Failing = stage.Name, count(members[i], Target.isHeld), count(members[i], Target.isFailing)
		its.Updated, its.Offline = count(members[i], Target.isUpdated), count(members[i], Target.isOffline)
	}
	d.Without = without(targets)
	for i, stage := range stages {
		d.goBack(stage, members[i])
	}
	isUnderWay := isUnderWay(targets)
	for i, stage := range stages {
		if isUnderWay && isHalted(stage, members[i]) {
			d.Stage, d.Reason, d.Message = i, Halted, haltedMessage(members[i])
			return d
		}
	}
	for i, stage := range stages {
		if !d.step(i, stage, members[i], isUnderWay, approval, hash, now) {
			return d
		}
	}
	return d
}

// isUnderWay reports whether any release has yet to get the state that it should have. An offline one counts if it
// could be updated.
func isUnderWay(targets []Target) bool {
	return slices.ContainsFunc(targets, func(t Target) bool {
		return t.Aside == "" && (t.isHeld() || !t.Offline && (t.Blocked || t.Pending != "" || t.Ready.IsZero()))
	})
}

// without names the Clusters that are offline or stand aside, by reason.
func without(targets []Target) string {
	of := map[string][]string{}
	for _, its := range targets {
		reason := its.Aside
		if reason == "" && its.Offline {
			reason = "offline"
		}
		if reason != "" {
			of[reason] = append(of[reason], its.Cluster.String())
		}
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(of)) {
		slices.Sort(of[reason])
		parts = append(parts, fmt.Sprintf("%d %s: %s", len(of[reason]), reason, message.List(of[reason], named, ", ")))
	}
	return strings.Join(parts, "; ")
}

func isHalted(stage Stage, members []Target) bool {
	return count(members, Target.isFailing) > stage.MaxFailing || slices.ContainsFunc(members, Target.isRegressed)
}

func haltedMessage(members []Target) string {
	isFailed := func(t Target) bool { return t.isFailing() && !t.isRegressed() }
	var parts []string
	if found := names(members, isFailed); found != "" {
		parts = append(parts, "the change fails on "+found)
	}
	if found := names(members, Target.isRegressed); found != "" {
		parts = append(parts, "no longer ready while its stage was soaking: "+found)
	}
	return strings.Join(parts, "; ")
}

// step decides about one stage, and reports whether the next one may begin.
func (d *Decision) step(i int, stage Stage, members []Target, isUnderWay bool, approval string, hash func([]string) string, now time.Time) (isDone bool) {
	d.Stage, d.Reason = i, Progressing
	if stage.Manual && d.approve(stage, members, approval, hash) {
		return false
	}
	d.move(stage, members, Target.isFree)
	var left time.Duration
	isWaitedFor := func(t Target) bool { // A release that ceases to work later does not affect a completed rollout.
		return !t.Offline && (t.Unknown || t.Blocked || t.Pending != "" || t.Ready.IsZero() || isUnderWay && !t.Available)
	}
	for _, its := range members {
		if !its.Offline && !isWaitedFor(its) {
			left = max(left, its.Ready.Add(stage.Soak).Sub(now))
		}
	}
	switch {
	case slices.ContainsFunc(members, isWaitedFor):
		if d.Reason == Progressing {
			d.Message = "waits for " + names(members, isWaitedFor)
		}
		return false
	case left > 0:
		d.Reason, d.Message, d.Again = Soaking, "every Cluster must be ready for "+stage.Soak.String(), left
		return false
	}
	d.Stage, d.Reason, d.Message = 0, Completed, ""
	return true
}

// approve handles a stage that needs approval. It reports true if a person has just approved its changes; otherwise,
// it asks for approval.
func (d *Decision) approve(stage Stage, members []Target, approval string, hash func([]string) string) bool {
	parts := []string{stage.Name}
	for _, its := range members {
		if its.isFree() {
			parts = append(parts, its.Cluster.String(), its.Pending)
		}
	}
	isLacking := func(t Target) bool { return t.isFree() && t.Approved != t.Pending }
	isGoing := func(t Target) bool { // The hash changes until these releases have reported their change, which an offline one may never do.
		return t.isHeld() && !t.Blocked && t.Approved == t.Pending && !(t.Unknown && t.Offline) || t.IsMoving() && !t.Offline && !t.isFailing()
	}
	its := hash(parts)
	switch lacking := clusters(members, isLacking); {
	case len(lacking) == 0:
	case approval == its:
		d.Approve, d.Message = lacking, "the change is approved for "+names(members, isLacking)
		return true
	case !slices.ContainsFunc(members, func(t Target) bool { return isLacking(t) && !t.Offline }): // The rollout waits for none of them.
	case slices.ContainsFunc(members, func(t Target) bool { return t.Unknown && !t.Offline }): // The hash may change.
	case !slices.ContainsFunc(members, isGoing):
		d.Reason, d.Approval = WaitingForApproval, its
		d.Message = "approve the change for " + names(members, isLacking)
	}
	return false
}

// goBack lets releases of a stage return to the state that they had when the rollout was last completed.
func (d *Decision) goBack(stage Stage, members []Target) {
	for i := range members {
		if members[i].Returns {
			members[i].Approved = members[i].Pending
		}
	}
	d.move(stage, members, func(t Target) bool { return t.Returns && t.isFree() })
}

// move lets releases of a stage get their changes. Updating a release that does not work, or whose agent is
// silent, makes no further Cluster unavailable.
func (d *Decision) move(stage Stage, members []Target, may func(Target) bool) {
	unavailable := count(members, Target.isUnavailable)
	for _, isFree := range []bool{true, false} {
		for i := range members {
			its := &members[i]
			if !may(*its) || stage.Manual && its.Approved != its.Pending || isFree != (its.Offline || !its.Available) {
				continue
			}
			if !isFree {
				if unavailable >= stage.MaxUnavailable {
					return
				}
				unavailable++
			}
			d.Move, its.Granted = append(d.Move, its.Cluster), its.Pending
		}
	}
}

func count(all []Target, is func(Target) bool) int { return len(clusters(all, is)) }

func clusters(all []Target, is func(Target) bool) []types.NamespacedName {
	var result []types.NamespacedName
	for _, its := range all {
		if is(its) {
			result = append(result, its.Cluster)
		}
	}
	return result
}

// named is how many Clusters a message names.
const named = 5

func names(all []Target, is func(Target) bool) string {
	var parts []string
	for _, its := range clusters(all, is) {
		parts = append(parts, its.String())
	}
	return message.List(parts, named, ", ")
}
