package hold

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Ends are the reasons for which a hold ends, or for which there was none.
var Ends = []string{
	addonsv1.AddOnsReadyReason, addonsv1.AddOnsUnchangedReason, addonsv1.BoundPassedReason, addonsv1.RevertedReason, addonsv1.OptedOutReason, addonsv1.NotInFleetReason, addonsv1.InvalidHoldReason, addonsv1.ReleasedReason, addonsv1.NotHeldReason,
}

// IsWarning reports whether an end is worth a warning: the upgrade does not, or did not, wait for its
// add-ons.
func IsWarning(reason string) bool {
	return reason == addonsv1.BoundPassedReason || reason == addonsv1.NotHeldReason || reason == addonsv1.InvalidHoldReason
}

// State is what the decision about a Cluster is made from.
type State struct {
	Cluster
	// Unwatched means that the watch filter of this syncer excludes the Cluster, which another syncer may watch.
	Unwatched bool
	// Reported is the condition that the Cluster has; nil for none.
	Reported *metav1.Condition
	// ControlPlane is the version that Cluster API has given the control plane; empty if unknown.
	ControlPlane string
	// Progress is called at most once, and only if the add-ons matter.
	Progress func(Hold) Progress
	Now      time.Time
}

// Decision says what to do with a Cluster.
type Decision struct {
	// Release takes the annotation off.
	Release bool
	// Tell is the condition that the Cluster should have; nil for none.
	Tell *metav1.Condition
	// End is the end of a hold that has not been announced yet; nil for none.
	End *metav1.Condition
	// Again is when to look again without an event; zero for never.
	Again time.Duration
}

// Decide decides about a Cluster.
func Decide(s State) Decision {
	bound, _ := Bound(s.Annotations)
	annotation, has := s.Annotations[stamp.HookAnnotation]
	if s.Paused || s.Unwatched && !has {
		return Decision{Tell: s.Reported}
	}
	if !has {
		return s.withoutHold(bound)
	}
	held, valid := Parse(annotation)
	if !valid {
		return s.release(Hold{From: s.Version}, addonsv1.InvalidHoldReason, "annotation "+stamp.HookAnnotation+" had a value that Muster does not write, and is removed")
	}
	held.To = s.Version // With the webhook down, the version may have changed again.
	since, isAhead := s.since(held, bound)
	if s.Unwatched && !isAhead && Abandoned(s.Annotations, s.Now) == "" {
		return Decision{Tell: s.Reported, Again: held.Since.Add(bound + overdue).Sub(s.Now)}
	}
	held.Since = since
	switch {
	case s.Version == held.From:
		return s.release(Hold{From: s.Version}, addonsv1.RevertedReason, "the version was changed back")
	case bound == 0:
		return s.withdraw(addonsv1.OptedOutReason)
	case s.ControlPlane != "" && s.ControlPlane != held.From:
		return s.release(held, addonsv1.NotHeldReason, fmt.Sprintf(
			"Cluster API upgrades the control plane to %s in spite of the hold: its feature gate RuntimeSDK is off", short(s.ControlPlane)))
	case s.Place == Out && s.Reported != nil && s.Reported.Reason != addonsv1.WaitingForFleetReason:
		return s.withdraw(addonsv1.NotInFleetReason)
	}
	return s.hold(held, bound, isAhead)
}

// since returns the time from which a hold counts. isAhead means that the hold names a later time, because a clock was
// ahead or another client wrote it. It then counts from now, and the condition says so from then on.
func (s State) since(held Hold, bound time.Duration) (since time.Time, isAhead bool) {
	if s.Reported != nil {
		text, isAhead := strings.CutPrefix(s.Reported.Message, about(held)+ahead+until)
		text, _, _ = strings.Cut(text, because)
		if at, err := time.Parse(time.RFC3339, text); isAhead && err == nil && !at.After(s.Now.Add(bound)) {
			return at.Add(-bound), true
		}
	}
	if held.Since.After(s.Now.Add(skew)) {
		return metav1.NewTime(s.Now).Rfc3339Copy().Time, true
	}
	return held.Since, false
}

// hold decides about a Cluster with a hold that still has a purpose. The bound comes first, because reading the add-ons may
// fail, or take long.
func (s State) hold(held Hold, bound time.Duration, isAhead bool) Decision {
	if held.isOver(bound, s.Now) {
		return s.release(held, addonsv1.BoundPassedReason, fmt.Sprintf("it was held for %s, the longest it may be%s", bound, s.lastProgress()))
	}
	left, prefix := held.Since.Add(bound).Sub(s.Now), ""
	if isAhead {
		prefix = ahead
	}
	waits := func(reason, why string) *metav1.Condition {
		return s.tell(held, metav1.ConditionTrue, reason, prefix+until+held.Since.Add(bound).UTC().Format(time.RFC3339)+because+why)
	}
	if s.Place == Out { // It was moved here just now: its status was not.
		return Decision{Tell: waits(addonsv1.WaitingForFleetReason, "it was moved here, and is not in Fleet here yet"), Again: left}
	}
	if s.Place != In { // What Fleet deploys to it cannot be read.
		return Decision{Tell: waits(addonsv1.WaitingForAddOnsReason, "the Cluster is not in Fleet now; see "+addonsv1.FleetImportedCondition), Again: left}
	}
	progress := s.Progress(held)
	switch {
	case progress.isDone() && progress.Changed:
		return s.release(held, addonsv1.AddOnsReadyReason, "the add-ons for the new version are ready")
	case progress.isDone():
		return s.release(held, addonsv1.AddOnsUnchangedReason, "the new version changes no add-on")
	}
	return Decision{Tell: waits(addonsv1.WaitingForAddOnsReason, progress.String()), Again: kube.Sooner(left, progress.Again)}
}

// The parts of the message of a hold: until and because enclose its end, and the progress follows. If the hold is
// dated ahead, since reads the end.
const (
	ahead   = "the hold is dated ahead, by a clock that is wrong; "
	until   = "the upgrade is held until "
	because = " at the latest: "
)

// Until returns the end of a hold, and what it waits for, from the message of the condition.
func Until(message string) (at time.Time, why string, err error) {
	_, rest, _ := strings.Cut(message, until)
	text, why, _ := strings.Cut(rest, because)
	at, err = time.Parse(time.RFC3339, text)
	return at, why, err
}

// lastProgress returns what the condition says last, after a colon; empty for nothing.
func (s State) lastProgress() string {
	if s.Reported == nil || s.Reported.Reason != addonsv1.WaitingForAddOnsReason {
		return ""
	}
	if _, progress, found := strings.Cut(s.Reported.Message, because); found {
		return ": " + progress
	}
	return ""
}

// withoutHold decides about a Cluster without the annotation.
func (s State) withoutHold(bound time.Duration) Decision {
	from, to := versionsOf(s.Reported)
	wasHeld := s.Reported != nil && s.Reported.Status == metav1.ConditionTrue
	switch {
	case bound == 0 && wasHeld:
		return s.withdraw(addonsv1.OptedOutReason)
	case bound == 0, s.Place == Out, s.Version == "":
		return Decision{}
	case s.Reported == nil && !s.Place.mayBegin():
		return Decision{}
	case s.Reported == nil:
		return Decision{Tell: s.tell(Hold{From: s.Version}, metav1.ConditionFalse, addonsv1.NoUpgradeReason, "the next change of the version is held for at most "+bound.String())}
	case wasHeld && s.Version == from:
		return s.release(Hold{From: from}, addonsv1.RevertedReason, "the version was changed back")
	case wasHeld && s.Version == to:
		return s.release(Hold{From: from, To: to}, addonsv1.ReleasedReason, "the hold is gone")
	case s.Version == to:
		return Decision{Tell: s.Reported}
	default:
		return s.release(Hold{From: to, To: s.Version}, addonsv1.NotHeldReason,
			"the version changed without a hold: the Cluster was paused, not in Fleet or upgrading already, or Muster's webhook could not be reached")
	}
}

// release ends a hold, or notes that there is none.
func (s State) release(of Hold, reason, message string) Decision {
	_, has := s.Annotations[stamp.HookAnnotation]
	end := s.tell(of, metav1.ConditionFalse, reason, message)
	return Decision{Release: has, Tell: end, End: end}
}

// withdraw ends a hold of a Cluster that can have none, and therefore no condition.
func (s State) withdraw(reason string) Decision {
	message := "the Cluster no longer asks for a hold with " + stamp.HoldAnnotation
	if reason == addonsv1.NotInFleetReason {
		message = "the Cluster is no longer in Fleet"
	}
	decision := s.release(Hold{From: s.Version}, reason, message)
	decision.Tell = nil
	return decision
}

// tell returns a condition about the versions of a hold.
func (s State) tell(of Hold, status metav1.ConditionStatus, reason, message string) *metav1.Condition {
	return &metav1.Condition{Type: addonsv1.FleetUpgradeHeldCondition, Status: status, Reason: reason, Message: about(of) + message}
}

const between = " to "

// about is the begin of a message; versionsOf reads it.
func about(of Hold) string {
	if of.To == "" {
		return short(of.From) + ": "
	}
	return short(of.From) + between + short(of.To) + ": "
}

// versionsOf returns the versions that a condition is about: the last one that was seen is to.
func versionsOf(condition *metav1.Condition) (from, to string) {
	if condition == nil {
		return "", ""
	}
	versions, _, _ := strings.Cut(condition.Message, ": ")
	from, to, found := strings.Cut(versions, between)
	if !found {
		return "", from
	}
	return from, to
}

func short(version string) string { return version[:min(len(version), longestVersion)] }
