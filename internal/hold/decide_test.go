package hold

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

func condition(status metav1.ConditionStatus, reason, message string) *metav1.Condition {
	return &metav1.Condition{Type: addonsv1.FleetUpgradeHeldCondition, Status: status, Reason: reason, Message: message}
}

func TestDecide(t *testing.T) {
	value := func(from, to string, ago time.Duration) string {
		return Hold{From: from, To: to, Since: noon.Add(-ago)}.String()
	}
	held := optedIn(stamp.HookAnnotation, value("v1", "v2", time.Minute))
	waiting := condition(metav1.ConditionTrue, addonsv1.WaitingForAddOnsReason, "v1 to v2: x")
	before := condition(metav1.ConditionFalse, addonsv1.NoUpgradeReason, "v1: x")
	ahead := optedIn(stamp.HookAnnotation, value("v1", "v2", -48*time.Hour))
	until := func(versions string, left time.Duration) *metav1.Condition {
		return condition(metav1.ConditionTrue, addonsv1.WaitingForAddOnsReason, versions+": the hold is dated ahead, by a clock that is wrong; the upgrade is held until "+noon.Add(left).Format(time.RFC3339)+" at the latest: not ready: x")
	}
	done, changed, busy := Progress{Handed: true}, Progress{Handed: true, Changed: true}, Progress{Handed: true, Waiting: []string{"Bundle cni"}}
	for name, test := range map[string]struct {
		annotations  map[string]string
		version      string
		change       func(*State)
		told         *metav1.Condition
		controlPlane string
		progress     Progress
		// want is the reason of the condition with the versions it is about; end that of the end.
		want, end string
		release   bool
		again     time.Duration
	}{
		"nobody asks":               {version: "v1"},
		"nobody asks any more":      {version: "v1", told: before},
		"opts in":                   {annotations: optedIn(), version: "v1", want: "NoUpgrade v1"},
		"nothing happens":           {annotations: optedIn(), version: "v1", told: before, want: "NoUpgrade v1"},
		"no topology":               {annotations: optedIn()},
		"not in Fleet":              {annotations: optedIn(), version: "v1", change: func(s *State) { s.Place = Out }},
		"waits":                     {annotations: held, version: "v2", told: before, progress: busy, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"goes on waiting":           {annotations: held, version: "v2", told: waiting, progress: busy, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"not handed":                {annotations: held, version: "v2", told: waiting, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"unproven":                  {annotations: held, version: "v2", progress: Progress{Handed: true, Unproven: []string{"x"}, Again: time.Second}, want: "WaitingForAddOns v1 to v2", again: time.Second},
		"ready":                     {annotations: held, version: "v2", told: waiting, progress: changed, want: "AddOnsReady v1 to v2", end: addonsv1.AddOnsReadyReason, release: true},
		"nothing changes":           {annotations: held, version: "v2", told: waiting, progress: done, want: "AddOnsUnchanged v1 to v2", end: addonsv1.AddOnsUnchangedReason, release: true},
		"the bound":                 {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", 30*time.Minute)), version: "v2", progress: busy, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"ready at the bound":        {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", 30*time.Minute)), version: "v2", progress: changed, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"unreadable at the bound":   {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", time.Hour)), version: "v2", progress: Progress{Unreadable: true}, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"unreadable":                {annotations: held, version: "v2", told: waiting, progress: Progress{Unreadable: true}, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"unreadable at first":       {annotations: held, version: "v2", told: before, progress: Progress{Unreadable: true}, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"dated ahead":               {annotations: ahead, version: "v2", told: before, progress: busy, want: "WaitingForAddOns v1 to v2", again: 30 * time.Minute},
		"ahead, and seen before":    {annotations: ahead, version: "v2", told: until("v1 to v2", 10*time.Minute), progress: busy, want: "WaitingForAddOns v1 to v2", again: 10 * time.Minute},
		"ahead, and over":           {annotations: ahead, version: "v2", told: until("v1 to v2", 0), progress: busy, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"ahead, a second version":   {annotations: ahead, version: "v2", told: until("v1 to v3", 0), progress: busy, want: "WaitingForAddOns v1 to v2", again: 30 * time.Minute},
		"ahead, told by that too":   {annotations: ahead, version: "v2", told: until("v1 to v2", 50*time.Hour), progress: busy, want: "WaitingForAddOns v1 to v2", again: 30 * time.Minute},
		"ahead, and done":           {annotations: ahead, version: "v2", told: until("v1 to v2", time.Minute), progress: changed, want: "AddOnsReady v1 to v2", end: addonsv1.AddOnsReadyReason, release: true},
		"ahead until now":           {annotations: held, version: "v2", told: until("v1 to v2", 10*time.Minute), progress: busy, want: "WaitingForAddOns v1 to v2", again: 10 * time.Minute},
		"ahead, and excluded":       {annotations: ahead, version: "v2", told: until("v1 to v2", 0), change: func(s *State) { s.Unwatched = true }, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"a clock that is fast":      {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", -30*time.Second)), version: "v2", progress: busy, want: "WaitingForAddOns v1 to v2", again: 30*time.Minute + 30*time.Second},
		"not ours":                  {annotations: optedIn(stamp.HookAnnotation, "x"), version: "v2", want: "InvalidHold v2", end: addonsv1.InvalidHoldReason, release: true},
		"reverted":                  {annotations: held, version: "v1", told: waiting, want: "Reverted v1", end: addonsv1.RevertedReason, release: true},
		"reverted by the webhook":   {annotations: optedIn(), version: "v1", told: waiting, want: "Reverted v1", end: addonsv1.RevertedReason},
		"opted out":                 {annotations: map[string]string{stamp.HookAnnotation: value("v1", "v2", 0)}, version: "v2", told: waiting, end: addonsv1.OptedOutReason, release: true},
		"opted out by the webhook":  {version: "v2", told: waiting, end: addonsv1.OptedOutReason},
		"a broken wish":             {annotations: map[string]string{stamp.HoldAnnotation: "x", stamp.HookAnnotation: value("v1", "v2", 0)}, version: "v2", told: waiting, end: addonsv1.OptedOutReason, release: true},
		"gone from Fleet":           {annotations: held, version: "v2", told: waiting, change: func(s *State) { s.Place = Out }, end: addonsv1.NotInFleetReason, release: true},
		"no namespace in Fleet":     {annotations: held, version: "v2", told: waiting, change: func(s *State) { s.Place = Returning }, progress: changed, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"none until the bound":      {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", time.Hour)), version: "v2", told: waiting, change: func(s *State) { s.Place = Returning }, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"an error keeps it out":     {annotations: held, version: "v2", told: waiting, change: func(s *State) { s.Place = Disturbed }, progress: changed, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"an error, and no hold":     {annotations: optedIn(), version: "v1", told: before, change: func(s *State) { s.Place = Disturbed }, want: "NoUpgrade v1"},
		"waits for its first agent": {annotations: optedIn(), version: "v1", change: func(s *State) { s.Place = Disturbed }},
		"moved here":                {annotations: held, version: "v2", change: func(s *State) { s.Place = Out }, want: "WaitingForFleet v1 to v2", again: 29 * time.Minute},
		"still not in Fleet":        {annotations: held, version: "v2", told: condition(metav1.ConditionTrue, addonsv1.WaitingForFleetReason, "v1 to v2: x"), change: func(s *State) { s.Place = Out }, want: "WaitingForFleet v1 to v2", again: 29 * time.Minute},
		"moved here in vain":        {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", time.Hour)), version: "v2", change: func(s *State) { s.Place = Out }, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"in vain, and told":         {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", time.Hour)), version: "v2", told: condition(metav1.ConditionTrue, addonsv1.WaitingForFleetReason, "v1 to v2: x"), change: func(s *State) { s.Place = Out }, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"excluded":                  {annotations: held, version: "v2", told: waiting, change: func(s *State) { s.Unwatched = true }, progress: changed, want: "WaitingForAddOns v1 to v2", again: 34 * time.Minute},
		"excluded, and over":        {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", 31*time.Minute)), version: "v2", told: waiting, change: func(s *State) { s.Unwatched = true }, want: "WaitingForAddOns v1 to v2", again: 4 * time.Minute},
		"excluded, and overdue":     {annotations: optedIn(stamp.HookAnnotation, value("v1", "v2", 35*time.Minute)), version: "v2", told: waiting, change: func(s *State) { s.Unwatched = true }, want: "BoundPassed v1 to v2", end: addonsv1.BoundPassedReason, release: true},
		"excluded, nobody asks":     {annotations: map[string]string{stamp.HookAnnotation: value("v1", "v2", 0)}, version: "v2", told: waiting, change: func(s *State) { s.Unwatched = true }, end: addonsv1.OptedOutReason, release: true},
		"excluded, and not held":    {annotations: optedIn(), version: "v2", told: before, change: func(s *State) { s.Unwatched = true }, want: "NoUpgrade v1"},
		"paused":                    {annotations: held, version: "v2", told: waiting, change: func(s *State) { s.Paused = true }, progress: changed, want: "WaitingForAddOns v1 to v2"},
		"no RuntimeSDK":             {annotations: held, version: "v2", told: waiting, controlPlane: "v2", progress: busy, want: "NotHeld v1 to v2", end: addonsv1.NotHeldReason, release: true},
		"a step of several":         {annotations: held, version: "v2", told: waiting, controlPlane: "v1.5", progress: busy, want: "NotHeld v1 to v2", end: addonsv1.NotHeldReason, release: true},
		"the control plane waits":   {annotations: held, version: "v2", told: waiting, controlPlane: "v1", progress: busy, want: "WaitingForAddOns v1 to v2", again: 29 * time.Minute},
		"the webhook was down":      {annotations: optedIn(), version: "v2", told: before, want: "NotHeld v1 to v2", end: addonsv1.NotHeldReason},
		"down after a reversal":     {annotations: optedIn(), version: "v2", told: condition(metav1.ConditionFalse, addonsv1.RevertedReason, "v1: x"), want: "NotHeld v1 to v2", end: addonsv1.NotHeldReason},
		"down at a second version":  {annotations: held, version: "v3", told: waiting, progress: busy, want: "WaitingForAddOns v1 to v3", again: 29 * time.Minute},
		"released, and not told":    {annotations: optedIn(), version: "v2", told: waiting, want: "Released v1 to v2", end: addonsv1.ReleasedReason},
		"released, and told":        {annotations: optedIn(), version: "v2", told: condition(metav1.ConditionFalse, addonsv1.AddOnsReadyReason, "v1 to v2: x"), want: "AddOnsReady v1 to v2"},
		"a condition of others":     {annotations: optedIn(), version: "v2", told: condition(metav1.ConditionFalse, "X", ""), want: "NotHeld  to v2", end: addonsv1.NotHeldReason},
	} {
		state := State{
			Cluster:  Cluster{Annotations: test.annotations, Version: test.version, Place: In},
			Reported: test.told, ControlPlane: test.controlPlane, Now: noon,
			Progress: func(of Hold) Progress {
				if of.To != test.version {
					t.Errorf("%s: asked about %v", name, of)
				}
				if test.end == addonsv1.BoundPassedReason {
					t.Errorf("%s: it reads the add-ons, which may take longer than there is time", name)
				}
				return test.progress
			},
		}
		if test.change != nil {
			test.change(&state)
		}
		got := Decide(state)
		about := func(condition *metav1.Condition) string {
			if condition == nil {
				return ""
			}
			versions, _, _ := strings.Cut(condition.Message, ": ")
			return condition.Reason + " " + versions
		}
		if about(got.Tell) != test.want {
			t.Errorf("%s: it tells %q, want %q", name, about(got.Tell), test.want)
		}
		if end := strings.Fields(about(got.End) + " ")[:min(1, len(strings.Fields(about(got.End))))]; strings.Join(end, "") != test.end {
			t.Errorf("%s: it ends by %q, want %q", name, end, test.end)
		}
		if got.Release != test.release || got.Again != test.again {
			t.Errorf("%s: release %t, again %s", name, got.Release, got.Again)
		}
		if got.Tell != nil && got.Tell.Status == metav1.ConditionTrue != (got.Tell.Reason == addonsv1.WaitingForAddOnsReason || got.Tell.Reason == addonsv1.WaitingForFleetReason) {
			t.Errorf("%s: %v", name, got.Tell)
		}
	}
}

// Without a change, the second decision gives the same condition as the first.
func TestDecideIsSteady(t *testing.T) {
	told := []*metav1.Condition{nil}
	for range 3 {
		for _, has := range []string{"", Hold{From: "v1", To: "v2", Since: noon}.String(), Hold{From: "v1", To: "v2", Since: noon.Add(-time.Hour)}.String(), Hold{From: "v1", To: "v2", Since: noon.Add(time.Hour)}.String(), "x"} {
			for _, version := range []string{"v1", "v2", "v3"} {
				for _, before := range told {
					annotations := optedIn()
					if has != "" {
						annotations[stamp.HookAnnotation] = has
					}
					state := State{Cluster: Cluster{Annotations: annotations, Version: version, Place: In}, Reported: before, Now: noon,
						Progress: func(Hold) Progress { return Progress{} }}
					first := Decide(state)
					state.Reported = first.Tell
					if first.Release {
						delete(annotations, stamp.HookAnnotation)
					}
					again := Decide(state)
					if again.Tell == nil || *again.Tell != *first.Tell || again.Release || again.End != nil {
						t.Fatalf("%s, %q, %v: %v, then %v", version, has, before, first, again)
					}
					if len(told) < 100 {
						told = append(told, first.Tell)
					}
				}
			}
		}
	}
}

func TestMemory(t *testing.T) {
	of := Hold{From: "v1", To: "v2", Since: noon}
	type look struct {
		after time.Duration
		seen  AddOns
		want  string
	}
	ready := func(id string, patience time.Duration) AddOn {
		return AddOn{Name: "a", ID: id, Ready: true, Patience: patience}
	}
	all := func(handed bool, all ...AddOn) AddOns { return AddOns{Handed: handed, All: all} }
	busy, anew := AddOn{Name: "a", ID: "2", Patience: Settle}, AddOns{Handed: true, Home: "2", Since: noon.Add(time.Second)}
	for name, test := range map[string]struct {
		of    Hold
		looks []look
	}{
		"no add-ons":                 {of, []look{{0, all(true), "unchanged"}}},
		"not handed":                 {of, []look{{0, all(false), "waits"}, {time.Hour, all(false), "waits"}, {time.Hour, all(true), "unchanged"}}},
		"static":                     {of, []look{{0, all(true, ready("1", 0)), "unchanged"}}},
		"may change":                 {of, []look{{0, all(true, ready("1", Settle)), "waits"}, {Settle - 1, all(true, ready("1", Settle)), "waits"}, {1, all(true, ready("1", Settle)), "unchanged"}}},
		"handed late":                {of, []look{{0, all(false, ready("1", Settle)), "waits"}, {time.Minute, all(true, ready("1", Settle)), "waits"}, {Settle, all(true, ready("1", Settle)), "unchanged"}}},
		"changes":                    {of, []look{{0, all(true, ready("1", Settle)), "waits"}, {time.Second, all(true, busy), "waits"}, {time.Hour, all(true, busy), "waits"}, {1, all(true, ready("2", Settle)), "changed"}}},
		"another changes":            {of, []look{{0, all(true, ready("1", Settle)), "waits"}, {Settle - 1, all(true, ready("1", Settle), AddOn{Name: "b", ID: "1", Ready: true}), "waits"}, {1, all(true, ready("1", Settle), AddOn{Name: "b", ID: "1", Ready: true}), "changed"}}},
		"changed before it was seen": {of, []look{{0, all(true, AddOn{Name: "a", ID: "2", Ready: true, Patience: Settle, Changed: noon.Add(time.Second)}), "changed"}}},
		"changed before the hold":    {of, []look{{0, all(true, AddOn{Name: "a", ID: "2", Ready: true, Patience: Settle, Changed: noon.Add(-time.Second)}), "waits"}}},
		"changed in the same second": {of, []look{{0, all(true, AddOn{Name: "a", ID: "2", Ready: true, Patience: Settle, Changed: noon}), "changed"}}},
		"by Fleet":                   {of, []look{{0, all(true, AddOn{Name: "a", ID: "2", Ready: true, Patience: Settle, Changed: noon, ByFleet: true}), "waits"}}},
		"broken all the time":        {of, []look{{0, all(true, AddOn{Name: "a", ID: "1"}), "waits"}, {time.Hour, all(true, AddOn{Name: "a", ID: "1"}), "waits"}}},
		"changed before Fleet had the version": {of, []look{
			{0, all(false, AddOn{Name: "a", ID: "1", Ready: true, Patience: Settle, ByFleet: true}), "waits"},
			{time.Minute, all(false, AddOn{Name: "a", ID: "2", Ready: true, Patience: Settle, ByFleet: true, Changed: noon.Add(30 * time.Second)}), "waits"},
			{time.Second, all(true, AddOn{Name: "a", ID: "2", Ready: true, Patience: Settle, ByFleet: true, Changed: noon.Add(30 * time.Second)}), "waits"},
			{Settle, all(true, AddOn{Name: "a", ID: "2", Ready: true, Patience: Settle, ByFleet: true, Changed: noon.Add(30 * time.Second)}), "unchanged"},
		}},
		"another input changes later": {of, []look{
			{0, all(true, AddOn{Name: "a", ID: "1", Ready: true, Patience: time.Minute, ReadAtIntervals: true}), "waits"},
			{30 * time.Second, all(true, AddOn{Name: "a", ID: "2", Ready: true, Patience: time.Minute, ReadAtIntervals: true}), "waits"},
			{30 * time.Second, all(true, AddOn{Name: "a", ID: "3", Ready: true, Patience: time.Minute, ReadAtIntervals: true}), "changed"},
		}},
		"no other input changes": {of, []look{
			{0, all(true, AddOn{Name: "a", ID: "1", Ready: true, Patience: time.Minute, ReadAtIntervals: true}), "waits"},
			{time.Minute, all(true, AddOn{Name: "a", ID: "1", Ready: true, Patience: time.Minute, ReadAtIntervals: true}), "unchanged"},
		}},
		"moved, and Fleet has not deployed yet": {of, []look{
			{0, anew, "waits"}, {Settle - 1, anew, "waits"}, {1, anew, "unchanged"},
		}},
		"made anew in Fleet after it had the version": {of, []look{
			{0, AddOns{Handed: true, Home: "1", All: []AddOn{busy}}, "waits"}, {time.Minute, anew, "waits"}, {Settle, anew, "unchanged"},
		}},
		"in Fleet before the hold": {of, []look{{0, AddOns{Handed: true, Since: noon.Add(-time.Minute)}, "unchanged"}}},
		"labels change":            {Hold{From: "v1", To: "v2", Since: noon, More: true}, []look{{0, all(true), "waits"}, {Settle, all(true), "unchanged"}}},
	} {
		var memory Memory
		now := noon
		for i, look := range test.looks {
			now = now.Add(look.after)
			progress := memory.See(test.of, look.seen, now)
			got := "waits"
			if progress.isDone() {
				got = map[bool]string{true: "changed", false: "unchanged"}[progress.Changed]
			}
			if got != look.want {
				t.Errorf("%s, look %d: %s (%s), want %s", name, i, got, progress, look.want)
			}
			if got == "waits" && len(progress.Unproven) > 0 && progress.Again <= 0 {
				t.Errorf("%s, look %d: nobody looks again", name, i)
			}
		}
	}
	// A second version begins anew.
	var memory Memory
	memory.See(of, all(true, ready("1", Settle)), noon)
	memory.See(of, all(true, ready("2", Settle)), noon)
	if progress := memory.See(Hold{From: "v1", To: "v3", Since: noon}, all(true, ready("2", Settle)), noon); progress.isDone() {
		t.Error("what changed for another version counts")
	}
}

func TestMessageNamesFew(t *testing.T) {
	if got := (Progress{Handed: true, Waiting: []string{"a", "b", "c", "d", "e"}}).String(); got != "not ready: a, b, c and 2 more" {
		t.Error(got)
	}
}
