// Package steps is how a reconciler works on one object: it asks what to do next, does it,
// and asks again, until nothing is left. What to do next is decided by a pure function
// elsewhere, of what is known and which steps were taken.
package steps

import "fmt"

// Run takes one step after the other until rest comes next, and returns the result that
// comes with it. Taken holds the steps taken; one that comes twice has changed nothing.
func Run[Step ~string, Result any](rest Step, taken map[Step]bool, next func() (Step, Result), take func(Step) error) (Result, error) {
	var none Result
	for {
		step, result := next()
		if step == rest {
			return result, nil
		}
		if taken[step] {
			return none, fmt.Errorf("the step %q has changed nothing", step)
		}
		if err := take(step); err != nil {
			return none, err
		}
		taken[step] = true
	}
}
