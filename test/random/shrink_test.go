package random

import (
	"errors"
	"fmt"
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
