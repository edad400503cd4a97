package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-fleet/muster/test/rollouts"
	"github.com/muster-fleet/muster/test/stack"
)

// playRollout makes everything strike a staged rollout, in any order, while people go on.
func (l *lab) playRollout(ctx context.Context, seed uint64) (said string, err error) {
	if err := l.withFleet(ctx); err != nil {
		return "", err
	}
	l.runs++
	l.kubelet.reset()
	scene, err := rollouts.New(ctx, rollouts.Options{
		Env: l.env, Charts: l.repo, Namespace: fmt.Sprintf("run%d", l.runs), Seed: seed, Retries: true,
	})
	if err != nil {
		return "", err
	}
	defer scene.End()
	r := &run{lab: l, tally: &tally{}, rng: rand.New(rand.NewPCG(seed, workers))}
	working, stop := context.WithCancel(ctx)
	played := make(chan error, 1)
	go func() { played <- scene.Play(working, 0) }()
	err = r.disturb(ctx, scene)
	stop()
	err = errors.Join(err, <-played)
	if err == nil {
		err = scene.Completes(ctx)
	}
	if err == nil {
		err = scene.Close(ctx)
	}
	return fmt.Sprintf("%d steps; %s", scene.Steps, scene.Seen()), err
}

// disturb stops one program after another.
func (r *run) disturb(ctx context.Context, scene *rollouts.Scene) error {
	strikes := []func() error{
		func() error { return killHelm(ctx, r) },
		func() error { return r.kill(ctx, stack.FleetController) },
		func() error { return r.withoutAPIServer(ctx, r.between(5*time.Second, 20*time.Second)) },
	}
	r.rng.Shuffle(len(strikes), func(i, j int) { strikes[i], strikes[j] = strikes[j], strikes[i] })
	for _, strike := range strikes {
		if err := r.pause(ctx, 2*time.Second, 6*time.Second); err != nil {
			return err
		}
		scene.Disturb()
		if err := strike(); err != nil {
			return err
		}
		if _, _, err := r.leader(ctx, helm); err != nil {
			return err
		}
		scene.Recover()
	}
	return r.pause(ctx, 2*time.Second, 6*time.Second)
}

// withFleet runs Fleet's own controller in addition to helm, and publishes the charts of rollouts.
func (l *lab) withFleet(ctx context.Context) error {
	if l.repo != nil {
		return nil // A chart that is published again has another digest.
	}
	if err := l.withHelm(ctx); err != nil {
		return err
	}
	return errors.Join(rollouts.Publish(l.repo), l.env.StartFleetController(ctx))
}
