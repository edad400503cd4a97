package random

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/rollouts"
	"github.com/muster-fleet/muster/test/stack"
)

// TestRollouts plays staged rollouts on Fleet's own controller, all seeds at once, while it kills Muster and Fleet.
// It judges each event.
func TestRollouts(t *testing.T) {
	first, seeds, steps := number(t, "MUSTER_SEED", 1), number(t, "MUSTER_SEEDS", 2), number(t, "MUSTER_STEPS", 30)
	charts := repository.New()
	t.Cleanup(charts.Close)
	if err := errors.Join(rollouts.Publish(charts), env.StartFleetController(ctx)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(ctx, stack.FleetController); err != nil {
			t.Error(err)
		}
	})
	all := &outages{}
	t.Run("seeds", func(t *testing.T) {
		for seed := first; seed < first+seeds; seed++ {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				if err := playRollouts(t, all, rollouts.Options{
					Env: env, Charts: charts, Namespace: fmt.Sprintf("rollouts-%d", seed), Seed: uint64(seed), Kill: all.kill,
				}, steps); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
		}
	})
}

func playRollouts(t *testing.T, all *outages, options rollouts.Options, steps int) error {
	begin := time.Now()
	scene, err := rollouts.New(ctx, options)
	if err != nil {
		return err
	}
	defer scene.End()
	all.concern(scene.Judge)
	err = scene.Play(ctx, steps)
	for _, next := range []func(context.Context) error{scene.Completes, scene.CompletesWithout, scene.Completes} {
		if err == nil {
			err = next(ctx)
		}
	}
	t.Logf("seed %d: %d steps in %s; %s", options.Seed, scene.Steps, time.Since(begin).Round(time.Second), scene.Seen())
	if err == nil {
		err = scene.Close(ctx)
	}
	return err
}

// outages stop Muster and Fleet, one at a time.
type outages struct {
	mu     sync.Mutex
	judges []*rollouts.Judge
}

func (o *outages) concern(judge *rollouts.Judge) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.judges = append(o.judges, judge)
}

// kill kills a program, and restarts it.
func (o *outages) kill(process string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, judge := range o.judges {
		judge.Disturb()
		defer judge.Recover()
	}
	if err := env.Kill(ctx, process); err != nil {
		return err
	}
	if process == stack.FleetController || process == webhookProcess { // They hold no Lease.
		return env.Start(ctx, process)
	}
	err := patch(leaseOf(process), map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	return errors.Join(err, env.Start(ctx, process), leads(process))
}
