package random

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// patience is how long Muster may take to come to rest. When the kind of a reference did not exist, it retries after
// 15 s.
const patience = 40 * time.Second

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	options := stack.Options{Profile: stack.API, Muster: true, Parts: []parts.Module{parts.Fleet}}
	return stack.Main(m, options, func(s *stack.Stack) error {
		if err := fixture.Use(&env, &admin)(s); err != nil {
			return err
		}
		if err := makeTenantRole(); err != nil {
			return err
		}
		return startHelm()
	})
}

// TestRandom plays runs of random steps.
func TestRandom(t *testing.T) {
	if path := os.Getenv("MUSTER_REPLAY"); path != "" {
		replay(t, path)
		return
	}
	first, seeds, count := number(t, "MUSTER_SEED", 1), number(t, "MUSTER_SEEDS", 3), number(t, "MUSTER_STEPS", 48)
	total, carried := 0, 0
	begin := time.Now()
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			begin := time.Now()
			setUpFor(t, seed)
			r, err := playSeed(seed, count)
			total, carried = total+r.count, carried+r.carried
			t.Logf("seed %d: %d steps in %s; %d registrations were made; at all quiet points together, %d Bundles carried charts, and HelmReleaseProxies waited: %v; the steps by kind: %v",
				seed, r.count, time.Since(begin).Round(time.Second), r.agents, r.carried, r.waiting, byKind(r.done))
			if err != nil {
				fails(t, seed, r, err)
			}
		})
	}
	fmt.Fprintf(os.Stderr, "%d steps over %d seeds in %s\n", total, seeds, time.Since(begin).Round(time.Second))
	if carried == 0 && seeds > 2 && !t.Failed() {
		t.Error("no chart was carried to any Cluster in any of the runs")
	}
}

func byKind(steps []Step) map[string]int {
	count := map[string]int{}
	for _, step := range steps {
		count[step.Op]++
	}
	return count
}

// setUpFor sets up the optional parts that a seed decides.
func setUpFor(t *testing.T, seed int) {
	t.Helper()
	setUp(t, seed%2 == 0, seed%3 != 0, seed%4 >= 2)
}

// setUp decides which optional parts a run has: the shipped admission policies, the registrar, and class labels by
// the API server.
func setUp(t *testing.T, policies, registrar, classLabels bool) {
	t.Helper()
	// The policies come with the component.
	if err := errors.Join(withRegistrar(registrar), withClassLabels(classLabels)); err != nil {
		t.Fatal(err)
	}
	restore, err := withPolicies(policies)
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fails reports a failure, and the few steps that are enough to cause it.
func fails(t *testing.T, seed int, r *run, err error) {
	t.Helper()
	t.Errorf("seed %d fails after %d steps: %v", seed, r.count, err)
	var difference *oracleError
	if !errors.As(err, &difference) {
		t.Logf("the steps:\n%s\nthe end of the syncer's log:\n%s", formatSteps(r.done), env.LogTail(syncerProcess))
		return
	}
	t.Logf("all steps:\n%s", formatSteps(r.done)) // A search among fewer may find something else.
	steps, err := shrink(t, r.done)
	t.Logf("%d steps are enough (MUSTER_REPLAY plays a file of them, MUSTER_SEED=%d sets it up alike):\n%s\n%v", len(steps), seed, formatSteps(steps), err)
}

func replay(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := parseSteps(string(text))
	if err != nil {
		t.Fatal(err)
	}
	setUpFor(t, number(t, "MUSTER_SEED", 4)) // The seed 4 has the policies and the registrar.
	if err := playSteps("replay", steps, patience); err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, name string, fallback int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

// playSeed draws steps until it has done enough of them.
func playSeed(seed, count int) (*run, error) {
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	return playAll(fmt.Sprintf("s%d", seed), patience, func(r *run) (Step, bool) { return drawStep(rng), r.count < count })
}

// playSteps plays recorded steps.
func playSteps(id string, steps []Step, patience time.Duration) error {
	tries++
	_, err := playAll(fmt.Sprintf("%s%d", id, tries), patience, func(*run) (next Step, more bool) {
		if more = len(steps) > 0; more {
			next, steps = steps[0], steps[1:]
		}
		return next, more
	})
	return err
}

// playAll plays steps while next returns more, and then removes everything.
func playAll(id string, patience time.Duration, next func(*run) (Step, bool)) (*run, error) {
	r, err := newRun(id, patience)
	if err != nil {
		return r, err
	}
	for step, more := next(r); more && err == nil; step, more = next(r) {
		err = r.play(step)
	}
	if err == nil {
		err = r.quiet()
	}
	return r, errors.Join(err, r.finish(err == nil))
}

// finish removes everything. If all went well so far, the objects that remain after the last Cluster and class must
// match the oracle. When those are removed too, nothing may remain.
func (r *run) finish(check bool) error {
	rests := func(when string) error {
		if !check {
			return nil
		}
		if err := r.quiet(); err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		return nil
	}
	if _, err := repositoryAnswers(r, Step{Value: "restarted"}); err != nil {
		return err
	}
	if err := errors.Join(r.startCollector(), r.start(syncerProcess, webhookProcess, registrarProcess, helmProcess)); err != nil {
		return err
	}
	if _, err := setConfig(r, Step{Config: &addonsv1.FleetAddonConfigSpec{}}); err != nil {
		return err
	}
	if err := rests("with the defaults"); err != nil {
		return err
	}
	if err := r.forceDelete(slices.Concat(values(r.state.Clusters), values(r.state.Classes), values(r.state.Referenced))); err != nil {
		return err
	}
	if err := rests("without Clusters and classes"); err != nil {
		return err
	}
	// The objects that the run made for Fleet go next: no program deletes them.
	played := slices.Concat(values(r.state.Helm.Proxies), values(r.state.AgentInitiated.Bundles), values(r.state.AgentInitiated.Credentials))
	for _, secret := range values(r.state.AgentInitiated.Manifests) {
		if len(secret.GetOwnerReferences()) == 0 {
			played = append(played, secret)
		}
	}
	if err := errors.Join(r.forceDelete(played), r.sweep()); err != nil {
		return err
	}
	time.Sleep(time.Second)
	if err := rests("with nothing left"); err != nil {
		return err
	}
	for _, namespace := range r.state.Namespaces {
		if _, err := r.remove(admin, namespace.DeepCopy()); err != nil {
			return err
		}
	}
	return nil
}

// sweep deletes the objects that Muster leaves on purpose or did not make, until none is left.
func (r *run) sweep() error {
	return poll.Until(ctx, "all to be gone", r.patience, func(ctx context.Context) error {
		seen, err := r.observe()
		if err != nil {
			return err
		}
		swept := slices.Concat(values(seen.FleetClusters), values(seen.Groups), values(seen.Mappings))
		// Registrations and manifests are not deleted here: they go with their owners.
		if len(swept)+len(seen.AgentInitiated.Registrations)+len(seen.AgentInitiated.Manifests) == 0 {
			r.state = seen
			return nil
		}
		for _, object := range swept {
			if err := admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		return &oracleError{"these come back, though nobody needs them:\n" + oracle.Diff(nil, oracle.View(seen))}
	})
}

// forceDelete deletes objects and their finalizers.
func (r *run) forceDelete(objects []client.Object) error {
	for _, object := range objects {
		object = object.DeepCopyObject().(client.Object)
		if err := patch(object, map[string]any{"metadata": map[string]any{"finalizers": nil}}); client.IgnoreNotFound(err) != nil {
			return err
		}
		if _, err := r.remove(admin, object); err != nil {
			return err
		}
		r.note(object, false)
		if err := r.waitGone(object); err != nil {
			return err
		}
	}
	return nil
}
