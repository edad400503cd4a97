package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	// deadline is how long Muster may take to come to rest after a fault.
	deadline = 2 * time.Minute
	// calm is for how long it must leave alone what is right.
	calm         = 500 * time.Millisecond
	lookInterval = 100 * time.Millisecond
	// settled are how many Clusters each person has before the fault strikes.
	settled = 2
)

// play lets a fault strike once. The error is the harness's, not Muster's.
func (l *lab) play(ctx context.Context, f fault, seed uint64) (rec *record, err error) {
	l.runs++
	rec = &record{Fault: f.name, Seed: seed}
	w, err := newWorld(ctx, l.admin, fmt.Sprintf("run%d", l.runs))
	if err != nil {
		return rec, err
	}
	if w.calls = f.calls; w.calls {
		if err := l.withRegistrar(ctx); err != nil {
			return rec, err
		}
		stop := w.playFleet(ctx, l.admin)
		defer func() { err = errors.Join(err, stop()) }()
	}
	if f.charts {
		if err := l.withCharts(ctx); err != nil {
			return rec, err
		}
		if err := w.prepareCharts(ctx, l); err != nil {
			return rec, err
		}
	}
	r := &run{lab: l, world: w, tally: &tally{}, record: rec, rng: rand.New(rand.NewPCG(seed, workers)), mend: func() {}}
	if err := r.served(ctx); err != nil {
		return rec, err
	}
	l.kubelet.reset()
	people := newChurn(ctx, l, w, r.tally, seed, settled)
	err = sleep(ctx, r.between(500*time.Millisecond, 3*time.Second))
	var over time.Time
	if err == nil {
		over, err = f.strike(ctx, r)
	}
	people.finish()
	if err != nil {
		r.mend()
		return rec, fmt.Errorf("%s, seed %d: %w", f.name, seed, err)
	}
	r.settle(ctx, over)
	r.mend()
	r.count()
	if rec.Converged {
		r.empty(ctx)
	}
	return rec, nil
}

func (r *run) count() {
	rec := r.record
	rec.Requests, rec.Admissions = r.requests.Load(), r.admissions.Load()
	rec.Retried, rec.FailedClosed, rec.Unstamped = r.retried.Load(), r.closed.Load(), r.unstamped.Load()
	rec.Wrong, rec.Restarts = r.wrong, r.kubelet.restarts()
}

// settle waits until what is there is what people wish for, and the webhooks answer.
func (r *run) settle(ctx context.Context, over time.Time) {
	want := r.expected()
	var since time.Time
	for end := time.Now().Add(deadline); ; time.Sleep(lookInterval) {
		got, problem := r.compare(ctx, want)
		switch {
		case problem != nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= calm:
			r.record.Converged, r.record.Took = true, seconds(max(0, since.Sub(over)))
			return
		}
		if time.Now().After(end) || ctx.Err() != nil {
			if problem != nil {
				r.record.Problem = problem.Error()
			}
			r.record.Lost, r.record.Orphaned = oracle.Missing(want, got), oracle.Extra(want, got)
			return
		}
	}
}

// compare returns what is there, and what is wrong with it.
func (r *run) compare(ctx context.Context, want oracle.State) (oracle.State, error) {
	ctx, done := context.WithTimeout(ctx, requestTimeout)
	defer done()
	seen, err := r.look(ctx, r.admin)
	if err != nil {
		return seen, err
	}
	if diff := oracle.Diff(oracle.View(want), oracle.View(oracle.Recognize(want, seen))); diff != "" {
		return seen, errors.New(diff)
	}
	if err := configObserved(ctx, r.admin); err != nil {
		return seen, err
	}
	return seen, r.answers(ctx)
}

// empty deletes everything that people made. What Muster leaves then is orphaned.
func (r *run) empty(ctx context.Context) {
	for _, object := range r.wishes() {
		if err := r.admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			r.record.Problem = err.Error()
		}
	}
	var left []string
	if err := poll.Until(ctx, "nothing to be left", deadline, func(ctx context.Context) error {
		seen, err := r.look(ctx, r.admin)
		if err != nil {
			return err
		}
		if left = oracle.Extra(oracle.NewState(), seen); len(left) > 0 {
			return fmt.Errorf("there is %v", left)
		}
		return nil
	}); err != nil {
		r.record.Orphaned, r.record.Problem = append(r.record.Orphaned, left...), err.Error()
		return
	}
	for name := range r.state.Namespaces {
		namespace := &corev1.Namespace{}
		namespace.Name = name
		_ = r.admin.Delete(ctx, namespace)
	}
}

// wishes are the objects that people have made.
func (w *world) wishes() []client.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []client.Object
	for _, proxy := range w.state.Charts.Proxies {
		all = append(all, proxy.DeepCopy())
	}
	for _, cluster := range w.state.Clusters {
		all = append(all, cluster.DeepCopy())
	}
	for _, class := range w.state.Classes {
		all = append(all, class.DeepCopy())
	}
	for _, referenced := range w.state.Referenced {
		all = append(all, referenced.DeepCopy())
	}
	return all
}
