package random

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Step is one thing that somebody does. It names objects by small numbers, so that
// it means the same in every run: Cluster is a slot that holds one Cluster at most.
type Step struct {
	Op             string `json:"op"`
	Cluster        int    `json:"cluster,omitempty"`
	Namespace      int    `json:"namespace,omitempty"`
	Class          int    `json:"class,omitempty"`
	ClassNamespace int    `json:"classNamespace,omitempty"`
	Kind           string `json:"kind,omitempty"`
	Key            string `json:"key,omitempty"`
	Value          string `json:"value,omitempty"`

	Config *addonsv1.FleetAddonConfigSpec `json:"config,omitempty"`

	// Proxy is a slot that holds one HelmChartProxy at most.
	Proxy int                          `json:"proxy,omitempty"`
	Chart *addonsv1.HelmChartProxySpec `json:"chart,omitempty"`
}

func (s Step) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func formatSteps(steps []Step) string {
	lines := make([]string, len(steps))
	for i, step := range steps {
		lines[i] = step.String()
	}
	return strings.Join(lines, "\n")
}

func parseSteps(text string) ([]Step, error) {
	var steps []Step
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		var step Step
		if err := json.Unmarshal([]byte(line), &step); err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// operation is a kind of step.
type operation struct {
	name string
	// weight is how often it is drawn, compared with others.
	weight int
	// draw fills in what it is done to, and how.
	draw func(*rand.Rand, *Step)
	// do does it; false means that it could not be done here.
	do func(*run, Step) (bool, error)
	// racy says that the result depends on what Muster has seen before, so that Muster
	// has to be at rest first; nil means never.
	racy func(*run, Step) bool
}

// quiet is the operation that compares with the oracle.
const quiet = "quiet"

// operations are all that can happen.
var operations = func() []operation {
	var all []operation
	for _, some := range [][]operation{clusterOperations, classOperations, configOperations, foreignOperations, tenantOperations, collidingOperations, processOperations, callingOperations, flapOperations, registrarOperations, chartsOperations, carriedOperations} {
		all = append(all, some...)
	}
	return all
}()

func operationOf(name string) operation {
	for _, operation := range operations {
		if operation.name == name {
			return operation
		}
	}
	panic("there is no operation " + name)
}

func drawStep(rng *rand.Rand) Step {
	total := 0
	for _, operation := range operations {
		total += operation.weight
	}
	pick := rng.IntN(total)
	for _, operation := range operations {
		if pick -= operation.weight; pick < 0 {
			step := Step{Op: operation.name}
			operation.draw(rng, &step)
			return step
		}
	}
	panic("unreachable")
}

func oneOf[T any](rng *rand.Rand, values ...T) T { return values[rng.IntN(len(values))] }

// maybe returns a pointer to one of the values, or nil with the given probability.
func maybe[T any](rng *rand.Rand, missing float64, values ...T) *T {
	value := oneOf(rng, values...)
	if rng.Float64() < missing {
		return nil
	}
	return &value
}

func always(*run, Step) bool { return true }

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
