package random

import (
	"encoding/json"
	"math/rand/v2"
	"strings"

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
