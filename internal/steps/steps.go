// Package steps runs a reconcile of one object: it asks for the next step, takes it, and asks again,
// until no step is left. A pure function elsewhere chooses the step, from the facts and the steps taken.
package steps

import "fmt"

// Run takes one step after the other until the next one is rest, and returns the result that comes with
// it. It records the steps in taken. A step that comes twice is an error: the first had no effect.
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
