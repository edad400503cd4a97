package rollout

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// release is a release of the simulated world. Stage, Pending, Aside and Returns of its Target follow from the other
// fields. It had the state completed when the rollout was last completed.
type release struct {
	Target
	has, wants, stage     string
	completed             string
	isPaused, isInstalled bool
}

// world is the simulated state, with the annotations of people and of the caller of Next.
type world struct {
	now             time.Time
	stages          []Stage
	releases        []*release
	joined, changes int
	// shown are the approvals that people have seen, and offers has the changes of each. Approval is the last one
	// that was given, and consent has the changes of all given approvals.
	shown    []string
	offers   map[string]map[string]string
	approval string
	consent  map[string]bool
	log      []string
}

func newWorld(seed uint64) *world {
	w := &world{now: now, offers: map[string]map[string]string{}, consent: map[string]bool{}}
	rng := rand.New(rand.NewPCG(seed, 1))
	soaks := []time.Duration{0, 5 * time.Minute, time.Hour}
	for i := range 1 + rng.IntN(4) {
		w.stages = append(w.stages, Stage{Name: fmt.Sprint("s", i), MaxUnavailable: 1 + rng.IntN(3), MaxFailing: rng.IntN(2),
			Manual: rng.IntN(3) == 0, Soak: soaks[rng.IntN(3)]})
	}
	w.stages[len(w.stages)-1].Name = ""
	for range 2 + rng.IntN(7) {
		w.join(rng.Int())
		w.releases[len(w.releases)-1].install(w)
	}
	return w
}

func (w *world) join(n int) {
	w.releases = append(w.releases, &release{Target: Target{Cluster: inNS(fmt.Sprint("c", w.joined))}, stage: w.stages[n%len(w.stages)].Name, wants: "v0"})
	w.joined++
}

func (r *release) install(w *world) {
	r.isInstalled, r.Available, r.has, r.completed, r.Ready = true, true, r.wants, r.wants, w.now
}

// event is an event of the simulation. Which release it affects, and how, follows from n and the state of the
// world, so that a history without some of its events is still a history.
type event struct {
	kind int
	n    uint32
}

// events are the possible events of a release or of the world. Each reports whether it had an effect.
var events = []struct {
	name string
	do   func(w *world, r *release, n int) bool
}{
	{"take over", func(_ *world, r *release, n int) bool { return r.takeOver(n%2 == 0) }},
	{"take over", func(_ *world, r *release, n int) bool { return r.takeOver(n%2 == 0) }},
	{"become ready", func(w *world, r *release, _ int) bool { return r.becomeReady(w) }},
	{"become ready", func(w *world, r *release, _ int) bool { return r.becomeReady(w) }},
	{"change all", func(w *world, _ *release, n int) bool { return w.change(n, func(int) bool { return n%2 == 0 }) }},
	{"change some", func(w *world, _ *release, n int) bool { return w.change(n, func(i int) bool { return n>>i&3 == 1 }) }},
	{"change", func(w *world, r *release, n int) bool {
		return w.change(n, func(i int) bool { return w.releases[i] == r })
	}},
	{"go back", func(w *world, _ *release, n int) bool {
		for _, r := range w.releases {
			if r.completed != "" {
				r.wants = r.completed
			}
		}
		return n%2 == 0
	}},
	{"fail", func(_ *world, r *release, n int) bool {
		isNew := r.has == r.wants && r.isInstalled && r.Ready.IsZero() && !r.Failed && n%2 == 0
		r.Failed = r.Failed || isNew
		return isNew
	}},
	{"cease to be ready", func(w *world, r *release, n int) bool {
		if r.Ready.IsZero() || n%2 > 0 {
			return false
		}
		r.Regressed = r.has == r.wants && w.now.Sub(r.Ready) < w.stages[w.index(r)].Soak
		r.Available, r.Ready = false, time.Time{}
		return true
	}},
	{"go offline or come back", func(_ *world, r *release, n int) bool { return flip(&r.Offline, n) }},
	{"values fail or are mended", func(_ *world, r *release, n int) bool { return flip(&r.Blocked, n) }},
	{"pause or resume", func(_ *world, r *release, n int) bool { return flip(&r.isPaused, n) }},
	{"become unknown or known", func(_ *world, r *release, n int) bool { return flip(&r.Unknown, n) }},
	{"retry", func(_ *world, r *release, n int) bool { return r.Regressed && flip(&r.Regressed, n) }},
	{"join or install", func(w *world, r *release, n int) bool {
		if !r.isInstalled {
			r.install(w)
		} else if len(w.releases) < 12 {
			w.join(n)
		}
		return true
	}},
	{"leave", func(w *world, r *release, n int) bool {
		if len(w.releases) > 1 && n%3 == 0 {
			w.releases = slices.DeleteFunc(w.releases, func(its *release) bool { return its == r })
		}
		return n%3 == 0
	}},
	{"change its stage", func(w *world, r *release, n int) bool { r.stage = w.stages[n%len(w.stages)].Name; return true }},
	{"delete a stage", func(w *world, _ *release, n int) bool {
		i := n >> 8 % len(w.stages)
		if n%8 > 0 || i >= len(w.stages)-1 {
			return false
		}
		w.stages = slices.Delete(w.stages, i, i+1) // No stage selects its Clusters then.
		return true
	}},
	{"time passes", func(w *world, _ *release, n int) bool {
		w.now = w.now.Add(time.Duration(n%40) * time.Minute)
		return true
	}},
	{"approve what was shown once", func(w *world, _ *release, n int) bool { return len(w.shown) > 0 && w.approve(w.shown[n%len(w.shown)]) }},
	{"approve what was shown last", func(w *world, _ *release, _ int) bool { return len(w.shown) > 0 && w.approve(w.shown[len(w.shown)-1]) }},
	{"reconcile, and stop on the way", func(w *world, _ *release, n int) bool { return w.persist(w.next(w.targets()), n%4) }},
	{"reconcile", func(w *world, _ *release, _ int) bool { return w.persist(w.next(w.targets()), 1000) }},
	{"reconcile", func(w *world, _ *release, _ int) bool { return w.persist(w.next(w.targets()), 1000) }},
}

// flip repairs things more often than it breaks them.
func flip(is *bool, n int) bool {
	was := *is
	*is = !was && n%4 == 0
	return was != *is
}

func (r *release) takeOver(isUp bool) bool {
	if r.Offline || r.isPaused || r.Blocked || !r.isInstalled || r.has == r.wants || r.Granted != r.wants {
		return false
	}
	r.has, r.Ready, r.Available, r.Failed, r.Regressed = r.wants, time.Time{}, r.Available && isUp, false, false
	return true
}

func (r *release) becomeReady(w *world) bool {
	if r.Offline || !r.isInstalled || !r.Ready.IsZero() {
		return false
	}
	r.Ready, r.Available, r.Failed = w.now, true, false
	return true
}

// change gives releases a new wanted state, or sometimes an earlier one.
func (w *world) change(n int, isChanged func(int) bool) bool {
	w.changes++
	state := max(0, w.changes-n>>16%4*(n>>24%2))
	for i, r := range w.releases {
		if isChanged(i) {
			r.wants = fmt.Sprint("v", state)
		}
	}
	return true
}

func (w *world) approve(shown string) bool {
	w.approval = shown
	for name, state := range w.offers[shown] {
		w.consent[name+state] = true
	}
	return true
}

// persist records a decision in the order that Decision requires, but at most this many of its parts.
func (w *world) persist(d Decision, most int) bool {
	for _, r := range w.releases {
		if i := slices.Index(d.Approve, r.Cluster); i >= 0 && i < most {
			r.Approved = r.wants
		}
		if i := slices.Index(d.Move, r.Cluster); i >= 0 && len(d.Approve)+i < most {
			r.Granted = r.wants
		}
		if d.Reason == Completed && r.isInstalled && most > 3 {
			r.completed = r.has
		}
	}
	return true
}

func (w *world) index(r *release) int {
	if i := slices.IndexFunc(w.stages, func(s Stage) bool { return s.Name == r.stage }); i >= 0 {
		return i
	}
	return len(w.stages) - 1
}

func (w *world) targets() []Target {
	var targets []Target
	for _, r := range w.releases {
		r.Stage, r.Aside, r.Pending = w.index(r), "", ""
		if r.isPaused || !r.isInstalled {
			r.Aside = "paused"
		}
		if r.has != r.wants {
			r.Pending = r.wants
		}
		r.Returns = r.Pending != "" && r.wants == r.completed
		targets = append(targets, r.Target)
	}
	return targets
}

func (w *world) next(targets []Target) Decision {
	return Next(w.stages, targets, w.approval, func(parts []string) string { return strings.Join(parts, ",") }, w.now)
}

// fact is what the specification of rollouts says about a release, and what the decision does with it.
type fact struct {
	Target
	waits, isApproved, mayMove bool // Its turn is still to come.
	busy                       bool // It is being updated.
	steady, settled            bool // It has been ready with the wanted state; long enough for the next stage to begin.
	moves, approves            bool
}

func (w *world) facts(d Decision) []fact {
	var facts []fact
	for _, t := range w.targets() {
		f := fact{Target: t, moves: slices.Contains(d.Move, t.Cluster), approves: slices.Contains(d.Approve, t.Cluster)}
		f.waits = t.Pending != "" && t.Granted != t.Pending
		f.isApproved = !w.stages[t.Stage].Manual || t.Approved == t.Pending || t.Returns
		f.mayMove = f.waits && f.isApproved && !t.Unknown && !t.Blocked
		f.busy = !f.waits && !t.Offline && (t.Pending != "" && !t.Blocked || t.Ready.IsZero())
		f.steady = t.Offline || !t.Unknown && !t.Blocked && t.Pending == "" && !t.Ready.IsZero()
		f.settled = t.Offline || f.steady && w.now.Sub(t.Ready) >= w.stages[t.Stage].Soak
		if t.Aside == "" {
			facts = append(facts, f)
		}
	}
	return facts
}

func number(facts []fact, is func(fact) bool) (n int) {
	for _, f := range facts {
		if is(f) {
			n++
		}
	}
	return n
}

// check compares the decision about the current state with the specification of rollouts.
func (w *world) check(rng *rand.Rand) error {
	targets := w.targets()
	d := w.next(targets)
	rng.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	if other := w.next(targets); !reflect.DeepEqual(d, other) {
		return fmt.Errorf("for the same input in another order, the decision is %+v, and not %+v", other, d)
	}
	facts, open := w.facts(d), len(w.stages)
	for _, f := range facts {
		if !f.settled {
			open = min(open, f.Stage)
		}
	}
	for _, f := range facts {
		switch {
		case f.moves && !f.mayMove:
			return fmt.Errorf("%s is updated, but is not held, or its change is unknown or not approved", f.Cluster.Name)
		case f.moves && f.Stage > open && !f.Returns:
			return fmt.Errorf("%s is updated, but stage %d is not done", f.Cluster.Name, open)
		case (f.moves && !f.Returns || f.approves) && w.stages[f.Stage].Manual && !w.consent[f.Cluster.Name+f.Pending]:
			return fmt.Errorf("no one has approved %s for %s", f.Pending, f.Cluster.Name)
		}
	}
	noted, isHalted := len(d.Move)+len(d.Approve), w.isHalted(facts)
	for i := range w.stages {
		its := slices.DeleteFunc(slices.Clone(facts), func(f fact) bool { return f.Stage != i })
		if err := checkReturns(w.stages[i], its); err != nil {
			return fmt.Errorf("stage %d: %w; the decision is %+v", i, err, d)
		}
	}
	switch {
	case noted != number(facts, func(f fact) bool { return f.moves || f.approves }):
		return errors.New("a release is updated that is unknown or aside, or is listed twice")
	case (isHalted || d.Reason == Halted) && noted > number(facts, func(f fact) bool { return f.moves && f.Returns }):
		return errors.New("the rollout is halted, but releases are updated")
	case d.Reason == Halted && !isHalted, d.Reason != Halted && isHalted && number(facts, func(f fact) bool { return f.waits }) > 0:
		return fmt.Errorf("should be halted: %t; the decision is %+v", isHalted, d)
	case d.Reason == Halted:
		return nil
	case len(d.Approve) == 0 && (open == len(w.stages)) != (d.Reason == Completed), d.Reason != Completed && d.Stage > open,
		len(d.Approve) == 0 && d.Reason != Completed && d.Stage < open:
		return fmt.Errorf("the first stage that is not done is %d; the decision is %+v", open, d)
	}
	for i := range w.stages {
		its := slices.DeleteFunc(slices.Clone(facts), func(f fact) bool { return f.Stage != i })
		if err := checkStage(w.stages[i], its, d, i == open, i <= open && len(d.Approve) == 0); err != nil {
			return fmt.Errorf("stage %d: %w; the decision is %+v", i, err, d)
		}
	}
	return w.show(d, facts)
}

func (w *world) isHalted(facts []fact) bool {
	isFailing := func(f fact) bool { return f.Blocked || f.Pending == "" && f.Failed }
	return slices.ContainsFunc(facts, func(f fact) bool {
		failing := number(facts, func(other fact) bool { return other.Stage == f.Stage && isFailing(other) })
		return failing > w.stages[f.Stage].MaxFailing || f.Pending == "" && f.Regressed
	})
}

// checkReturns checks that exactly the allowed number of releases of a stage return to the state of the last
// completed rollout, whatever the rollout's stage.
func checkReturns(stage Stage, facts []fact) error {
	unavailable := number(facts, func(f fact) bool { return !f.Offline && (f.busy || !f.Available) })
	returns := func(f fact) bool { return f.Returns && f.mayMove }
	costs := func(f fact) bool { return returns(f) && !f.Offline && f.Available }
	moving := number(facts, func(f fact) bool { return f.moves && costs(f) })
	switch {
	case moving > 0 && unavailable+moving > stage.MaxUnavailable:
		return fmt.Errorf("%d are unavailable, and %d return", unavailable, moving)
	case moving < min(number(facts, costs), stage.MaxUnavailable-unavailable):
		return fmt.Errorf("%d are unavailable, and only %d return", unavailable, moving)
	case number(facts, func(f fact) bool { return returns(f) && !costs(f) && !f.moves }) > 0:
		return errors.New("offline or unavailable releases do not return")
	}
	return nil
}

// checkStage checks that exactly the allowed number of releases of a stage are updated, and that the decision says
// what the stage waits for.
func checkStage(stage Stage, facts []fact, d Decision, isOpen, isReached bool) error {
	count := func(is func(fact) bool) int { return number(facts, is) }
	unavailable := count(func(f fact) bool { return !f.Offline && (f.busy || !f.Available) })
	costs := func(f fact) bool { return f.mayMove && !f.Offline && f.Available }
	moving := count(func(f fact) bool { return f.moves && costs(f) })
	isSteady := count(func(f fact) bool { return !f.steady }) == 0
	isLacking := func(f fact) bool { return f.waits && !f.isApproved && !f.Unknown && !f.Blocked }
	approved := count(func(f fact) bool { return f.approves })
	switch {
	case moving > 0 && unavailable+moving > stage.MaxUnavailable:
		return fmt.Errorf("%d are unavailable, and %d are updated", unavailable, moving)
	case approved > 0 && (approved != count(isLacking) || count(func(f fact) bool { return f.moves && !f.Returns }) > 0):
		return errors.New("a release is updated before the approval is recorded for all")
	case !isReached:
	case moving < min(count(costs), stage.MaxUnavailable-unavailable):
		return fmt.Errorf("%d are unavailable, and only %d are updated", unavailable, moving)
	case count(func(f fact) bool { return f.mayMove && !costs(f) && !f.moves }) > 0:
		return errors.New("offline or unavailable releases are not updated")
	case !isOpen:
	case isSteady != (d.Reason == Soaking) || isSteady && (d.Again <= 0 || d.Again > stage.Soak):
		return fmt.Errorf("should soak: %t", isSteady)
	case count(func(f fact) bool { return isLacking(f) && !f.Offline }) > 0 && d.Reason != WaitingForApproval &&
		count(func(f fact) bool { return f.Unknown && !f.Offline }) == 0 &&
		count(func(f fact) bool {
			return f.busy && !f.Blocked && (f.Pending != "" || !f.Failed && !f.Regressed) || f.waits && f.isApproved && !f.Blocked && (!f.Unknown || !f.Offline)
		}) == 0:
		return errors.New("only the approval is missing")
	}
	return nil
}

// show lets people see what waits for approval: all held releases of the stage.
func (w *world) show(d Decision, facts []fact) error {
	if (d.Approval != "") != (d.Reason == WaitingForApproval) {
		return fmt.Errorf("an approval belongs to another decision than %+v", d)
	} else if d.Approval == "" {
		return nil
	}
	offer := map[string]string{}
	for _, f := range facts {
		if f.Stage == d.Stage && f.waits && !f.moves && !f.Unknown && !f.Blocked {
			offer[f.Cluster.Name] = f.Pending
		}
	}
	if before, isKnown := w.offers[d.Approval]; isKnown && !reflect.DeepEqual(before, offer) {
		return fmt.Errorf("approval %s is for %v now, and was for %v", d.Approval, offer, before)
	}
	w.offers[d.Approval] = offer
	w.shown = append(slices.DeleteFunc(w.shown, func(its string) bool { return its == d.Approval }), d.Approval)
	return nil
}

// settle makes everything healthy and approved from now on, with or without the offline and paused releases. The
// rollout must then end.
func (w *world) settle(rng *rand.Rand, isComplete bool) error {
	for _, r := range w.releases {
		// A release that has failed halts the rollout, whether its agent is silent or not.
		r.Offline, r.isPaused, r.Regressed = r.Offline && !isComplete && !r.Failed, r.isPaused && !isComplete, false
		r.Unknown, r.Blocked = r.Unknown && r.Offline, false
	}
	for range 20 * len(w.releases) {
		if err := w.check(rng); err != nil {
			return fmt.Errorf("while everything is healthy: %w", err)
		}
		d := w.next(w.targets())
		if d.Reason == Completed && number(w.facts(d), func(f fact) bool { return !f.Offline && f.Pending != "" }) == 0 {
			return nil
		}
		w.persist(d, 1000)
		for _, r := range w.releases {
			r.takeOver(false)
			r.becomeReady(w)
		}
		w.approve(d.Approval)
		w.now = w.now.Add(max(d.Again, time.Second))
	}
	return fmt.Errorf("everything is healthy, but the rollout does not end: %+v", w.next(w.targets()))
}

func play(seed uint64, history []event) (*world, error) {
	w, rng := newWorld(seed), rand.New(rand.NewPCG(seed, 2))
	for _, its := range history {
		r, kind := w.releases[int(its.n>>4)%len(w.releases)], events[its.kind]
		if !kind.do(w, r, int(its.n)) {
			continue
		}
		w.log = append(w.log, fmt.Sprintf("%s %s (%d)", r.Cluster.Name, kind.name, its.n))
		if err := w.check(rng); err != nil {
			return w, err
		}
	}
	return w, w.settle(rng, seed%2 == 0)
}

// TestHistories plays random histories, and after each event compares the decision with the specification of
// rollouts. MUSTER_SEED is the seed of the first.
func TestHistories(t *testing.T) {
	first, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64)
	if err != nil {
		first = 1
	}
	for seed := first; seed < first+800; seed++ {
		rng, history := rand.New(rand.NewPCG(seed, 0)), make([]event, 150)
		for i := range history {
			history[i] = event{kind: rng.IntN(len(events)), n: rng.Uint32()}
		}
		if _, err := play(seed, history); err == nil {
			continue
		}
		for i := len(history) - 1; i >= 0; i-- { // Find a shorter history that fails, too.
			if shorter := slices.Delete(slices.Clone(history), i, i+1); func() bool { _, err := play(seed, shorter); return err != nil }() {
				history = shorter
			}
		}
		w, err := play(seed, history)
		t.Fatalf("MUSTER_SEED=%d: %v\nstages: %+v\nreleases: %+v\nhistory:\n%s", seed, err, w.stages, w.targets(), strings.Join(w.log, "\n"))
	}
}
