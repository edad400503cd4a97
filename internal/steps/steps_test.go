package steps

import (
	"errors"
	"slices"
	"testing"
)

func TestRun(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		plan  []string
		fails string
		done  []string
		want  int // -1 for an error
	}{
		"nothing to do":   {plan: []string{"rest"}, want: 1},
		"in order":        {plan: []string{"a", "b", "rest"}, done: []string{"a", "b"}, want: 3},
		"a step fails":    {plan: []string{"a", "b", "rest"}, fails: "b", done: []string{"a"}, want: -1},
		"a step is taken": {plan: []string{"a", "a", "rest"}, done: []string{"a"}, want: -1},
	} {
		t.Run(name, func(t *testing.T) {
			asked, taken := 0, map[string]bool{}
			var done []string
			got, err := Run("rest", taken, func() (string, int) {
				asked++
				return test.plan[asked-1], asked
			}, func(step string) error {
				if step == test.fails {
					return broken
				}
				done = append(done, step)
				return nil
			})
			if (err != nil) != (test.want < 0) || err == nil && got != test.want || err != nil && got != 0 {
				t.Errorf("got %d and error %v, want %d", got, err, test.want)
			}
			if !slices.Equal(done, test.done) || taken[test.fails] {
				t.Errorf("took %v, want %v; noted %v", done, test.done, taken)
			}
			if test.fails != "" && !errors.Is(err, broken) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
