package random

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	webhookProcess = "muster-webhook"
	syncerProcess  = "muster-syncer"
	// patience is how long Muster may take to come to rest. A reference of a kind that
	// nobody had is looked for again after 15 s.
	patience = 40 * time.Second
)

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	options := stack.Options{Profile: stack.API, Muster: true}
	return stack.Main(m, options, func(s *stack.Stack) error {
		if err := fixture.Use(&env, &admin)(s); err != nil {
			return err
		}
		if err := makeTenantRole(); err != nil {
			return err
		}
		return withCharts()
	})
}

// TestRandom plays runs of random steps.
func TestRandom(t *testing.T) {
	if path := os.Getenv("MUSTER_REPLAY"); path != "" {
		replay(t, path)
		return
	}
	first, seeds, count := number(t, "MUSTER_SEED", 1), number(t, "MUSTER_SEEDS", 3), number(t, "MUSTER_STEPS", 60)
	total, carried := 0, 0
	begin := time.Now()
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			begin := time.Now()
			// Before the policies go, which come with the component.
			if err := withRegistrar(seed%3 != 0); err != nil {
				t.Fatal(err)
			}
			if err := withClassLabels(seed%4 >= 2); err != nil {
				t.Fatal(err)
			}
			restore, err := withPolicies(seed%2 == 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := restore(); err != nil {
					t.Error(err)
				}
			})
			r, err := playSeed(seed, count)
			total, carried = total+r.count, carried+r.carried
			t.Logf("seed %d: %d steps in %s; %d registrations were made; at all quiet points together, %d Bundles and HelmOps carried charts",
				seed, r.count, time.Since(begin).Round(time.Second), r.callers, r.carried)
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

// fails says what fails, and how few steps are enough for that.
func fails(t *testing.T, seed int, r *run, err error) {
	t.Helper()
	t.Errorf("seed %d fails after %d steps: %v", seed, r.count, err)
	var difference *oracleError
	if !errors.As(err, &difference) {
		t.Logf("the steps:\n%s\nthe end of the syncer's log:\n%s", formatSteps(r.done), env.LogTail(syncerProcess))
		return
	}
	steps, err := shrink(t, r.done)
	t.Logf("%d steps are enough (MUSTER_REPLAY plays a file of them):\n%s\n%v", len(steps), formatSteps(steps), err)
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
	if err := withRegistrar(true); err != nil {
		t.Fatal(err)
	}
	restore, err := withPolicies(true)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(playSteps("replay", steps, patience, true), restore()); err != nil {
		t.Fatal(err)
	}
}

// asked returns what an environment variable says, on or off, or what is wanted if it says nothing.
func asked(name string, wanted bool) bool {
	if text := os.Getenv(name); text != "" {
		return text != "off"
	}
	return wanted
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

// playSeed draws steps until enough of them were done.
func playSeed(seed, count int) (*run, error) {
	r, err := newRun(fmt.Sprintf("s%d", seed), patience)
	if err != nil {
		return r, err
	}
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	for r.count < count && err == nil {
		_, err = r.play(drawStep(rng))
	}
	if err == nil {
		err = r.quiet()
	}
	return r, errors.Join(err, r.finish(err == nil))
}

// playSteps plays recorded steps, and checks what is left in the end if it is told to.
func playSteps(id string, steps []Step, patience time.Duration, toTheEnd bool) error {
	r, err := newRun(id, patience)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if _, err = r.play(step); err != nil {
			break
		}
	}
	if err == nil {
		err = r.quiet()
	}
	return errors.Join(err, r.finish(err == nil && toTheEnd))
}

// finish removes everything. If all went well so far, what is left over when all
// Clusters and classes are gone is what the oracle says; and when that is gone too,
// there must be nothing.
func (r *run) finish(check bool) error {
	if err := errors.Join(r.startCollector(), r.startSyncer(), r.startWebhook(), r.startRegistrar(), r.startCharts()); err != nil {
		return err
	}
	if r.state.Config != nil {
		if _, err := deleteConfig(r, Step{}); err != nil {
			return err
		}
	}
	if check {
		if err := r.quiet(); err != nil {
			return fmt.Errorf("without a FleetAddonConfig: %w", err)
		}
	}
	for _, cluster := range r.state.Clusters {
		if err := r.forceDelete(cluster); err != nil {
			return err
		}
	}
	for _, class := range r.state.Classes {
		if err := r.forceDelete(class); err != nil {
			return err
		}
	}
	for _, referenced := range r.state.Referenced {
		if err := r.forceDelete(referenced); err != nil {
			return err
		}
	}
	clear(r.state.Clusters)
	clear(r.state.Classes)
	clear(r.state.Referenced)
	if check {
		if err := r.quiet(); err != nil {
			return fmt.Errorf("without Clusters and classes: %w", err)
		}
	}
	if err := errors.Join(r.sweepCalling(), r.sweepProxies(), r.removeFleetNamespaces()); err != nil {
		return err
	}
	return r.sweep(check)
}

// sweep deletes what Muster leaves on purpose or did not make, and then looks for orphans.
func (r *run) sweep(check bool) error {
	deadline := time.Now().Add(r.patience)
	for {
		seen, err := r.look()
		if err != nil {
			return err
		}
		// Nobody deletes what was registered and handed out: it goes with what it is for.
		if len(seen.FleetClusters)+len(seen.Groups)+len(seen.Mappings)+len(seen.Calling.Registrations)+len(seen.Calling.Manifests) == 0 {
			r.state = seen
			break
		}
		if time.Now().After(deadline) {
			return &oracleError{"these come back, though nobody needs them:\n" + oracle.View(seen)}
		}
		for _, objects := range [][]client.Object{values(seen.FleetClusters), values(seen.Groups), values(seen.Mappings)} {
			for _, object := range objects {
				if err := admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
					return err
				}
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	if check {
		time.Sleep(time.Second)
		if err := r.quiet(); err != nil {
			return fmt.Errorf("with nothing left: %w", err)
		}
	}
	for _, namespace := range r.state.Namespaces {
		if err := admin.Delete(ctx, &corev1.Namespace{ObjectMeta: namespace.ObjectMeta}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

func values[T client.Object](objects map[oracle.Key]T) []client.Object {
	var result []client.Object
	for _, object := range objects {
		result = append(result, object)
	}
	return result
}

// forceDelete deletes an object and its finalizers.
func (r *run) forceDelete(object client.Object) error {
	object = object.DeepCopyObject().(client.Object)
	if err := patch(object, map[string]any{"metadata": map[string]any{"finalizers": nil}}); client.IgnoreNotFound(err) != nil {
		return err
	}
	if err := admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.waitGone(object)
}

func try(timeout time.Duration, what func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := what()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
