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

// Step is one action. It names objects by small numbers, so that it means the same in every run: Cluster is a slot
// that holds one Cluster at most.
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
	for decoder := json.NewDecoder(strings.NewReader(text)); decoder.More(); {
		var step Step
		if err := decoder.Decode(&step); err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// operation is a kind of step.
type operation struct {
	name string
	// weight is how often it is drawn, relative to others.
	weight int
	// draw fills in the step's object and details, and is nil if there is nothing to choose.
	draw drawing
	// do does the step; false means that it could not be done here.
	do func(*run, Step) (bool, error)
	// racy reports whether the result depends on what Muster has seen before, so that Muster must be at rest first;
	// nil means never.
	racy func(*run, Step) bool
}

// quiet is the operation that compares with the oracle.
const quiet = "quiet"

// operations are all operations.
var operations = slices.Concat(
	clusterOperations, classOperations, configOperations, foreignOperations, briefOperations, tenantOperations, collidingOperations,
	processOperations, agentOperations, flapOperations, registrarOperations, helmOperations, carriedOperations,
	releaseOperations, pruningOperations,
)

func operationOf(name string) operation {
	return operations[slices.IndexFunc(operations, func(operation operation) bool { return operation.name == name })]
}

func drawStep(rng *rand.Rand) Step {
	drawn := drawWeighted(rng, operations, func(its operation) int { return its.weight })
	step := Step{Op: drawn.name}
	if drawn.draw != nil {
		drawn.draw(rng, &step)
	}
	return step
}

// drawWeighted draws one of several items. An item with twice the weight is drawn twice as often.
func drawWeighted[T any](rng *rand.Rand, all []T, weightOf func(T) int) T {
	total := 0
	for _, its := range all {
		total += weightOf(its)
	}
	pick := rng.IntN(total)
	for _, its := range all {
		if pick -= weightOf(its); pick < 0 {
			return its
		}
	}
	panic("unreachable")
}

// drawing fills in part of a step.
type drawing func(*rand.Rand, *Step)

// draws applies several drawings in turn.
func draws(all ...drawing) drawing {
	return func(rng *rand.Rand, step *Step) {
		for _, draw := range all {
			draw(rng, step)
		}
	}
}

func drawKind(from ...string) drawing {
	return func(rng *rand.Rand, step *Step) { step.Kind = oneOf(rng, from...) }
}

func drawKey(from ...string) drawing {
	return func(rng *rand.Rand, step *Step) { step.Key = oneOf(rng, from...) }
}

func drawValue(from ...string) drawing {
	return func(rng *rand.Rand, step *Step) { step.Value = oneOf(rng, from...) }
}

func drawSlot(rng *rand.Rand, step *Step)      { step.Cluster = rng.IntN(slotCount) }
func drawNamespace(rng *rand.Rand, step *Step) { step.Namespace = rng.IntN(namespaceCount) }

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

// hurry is the patience while searching. A failure that it finds is replayed with the full patience.
const hurry = 5 * time.Second

// tries numbers the runs of recorded steps, each of which has its own namespaces.
var tries int

// shrink searches for ten minutes, and returns a short part of the steps that still fails, and the failure.
func shrink(t *testing.T, steps []Step) ([]Step, error) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Minute)
	fails := func(steps []Step, patience time.Duration) error {
		err := playSteps("try", steps, patience)
		var difference *oracleError
		if err != nil && !errors.As(err, &difference) {
			t.Logf("a shorter run broke: %v", err)
			return nil
		}
		return err
	}
	last := fails(steps, patience)
	if last == nil {
		return steps, errors.New("it did not fail again; the steps are all of them")
	}
	// leaveOut reports whether the remaining steps fail as well, and keeps them if they do.
	leaveOut := func(drop func(int, Step) bool) bool {
		var rest []Step
		for i, step := range steps {
			if !drop(i, step) {
				rest = append(rest, step)
			}
		}
		if len(rest) == 0 || len(rest) == len(steps) || time.Now().After(deadline) {
			return false
		}
		err := fails(rest, hurry)
		if err != nil {
			steps, last = rest, err
		}
		return err != nil
	}
	// Delta debugging: leave out ever smaller parts.
	for size := (len(steps) + 1) / 2; size >= 1; size /= 2 {
		for begin := 0; begin < len(steps); {
			if !leaveOut(func(i int, _ Step) bool { return begin <= i && i < begin+size }) {
				begin += size
			}
		}
	}
	if err := fails(steps, patience); err != nil {
		return steps, err
	}
	return steps, fmt.Errorf("with more patience it does not fail; it only takes long: %w", last)
}
