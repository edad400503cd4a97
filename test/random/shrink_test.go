package random

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// hurry is the patience while searching. What it finds is played once more with all
// of the patience.
const hurry = 5 * time.Second

// tries numbers the runs while searching, each of which has its own namespaces.
var tries int

// shrink returns a short part of the steps that still fails, and how. MUSTER_SHRINK
// is for how many minutes it looks.
func shrink(t *testing.T, steps []Step) ([]Step, error) {
	t.Helper()
	deadline := time.Now().Add(time.Duration(number(t, "MUSTER_SHRINK", 10)) * time.Minute)

	toTheEnd := false
	fails := func(steps []Step, patience time.Duration) error {
		tries++
		err := playSteps(fmt.Sprintf("try%d", tries), steps, patience, toTheEnd)
		var difference *oracleError
		if err != nil && !errors.As(err, &difference) {
			t.Logf("a shorter run broke: %v", err)
			return nil
		}
		return err
	}
	var last error
	for _, toTheEnd = range []bool{false, true} {
		if last = fails(steps, patience); last != nil {
			break
		}
	}
	if last == nil {
		return steps, errors.New("it did not fail again; the steps are all of them")
	}
	// What the failure has nothing to do with goes first: whole Clusters and classes,
	// whole kinds of steps. That is most of it, in few runs.
	for _, about := range []func(Step) any{
		func(step Step) any { return step.Op },
		func(step Step) any { return [2]any{"cluster", step.Cluster} },
		func(step Step) any { return [3]any{"class", step.ClassNamespace, step.Class} },
		func(step Step) any { return [2]any{step.Op, step.Kind} },
	} {
		for _, subject := range subjects(steps, about) {
			rest := slices.DeleteFunc(slices.Clone(steps), func(step Step) bool { return about(step) == subject })
			if len(rest) == 0 || time.Now().After(deadline) {
				continue
			}
			if err := fails(rest, hurry); err != nil {
				steps, last = rest, err
			}
		}
	}
	// Delta debugging: leave out ever smaller parts.
	for size := (len(steps) + 1) / 2; size >= 1; {
		shorter := false
		for begin := 0; begin < len(steps) && time.Now().Before(deadline); {
			rest := append(append([]Step{}, steps[:begin]...), steps[min(begin+size, len(steps)):]...)
			if err := fails(rest, hurry); err != nil {
				steps, last, shorter = rest, err, true
			} else {
				begin += size
			}
		}
		if size == 1 && !shorter || time.Now().After(deadline) {
			break
		}
		size = max(1, size/2)
	}
	if err := fails(steps, patience); err != nil {
		return steps, err
	}
	return steps, fmt.Errorf("with more patience it does not fail; it only takes long: %w", last)
}

// subjects returns what the steps are about, the most frequent first.
func subjects(steps []Step, about func(Step) any) []any {
	counts := map[any]int{}
	var all []any
	for _, step := range steps {
		subject := about(step)
		if counts[subject]++; counts[subject] == 1 {
			all = append(all, subject)
		}
	}
	slices.SortStableFunc(all, func(a, b any) int { return counts[b] - counts[a] })
	return all
}
