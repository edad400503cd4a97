package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	// deadline is how long Muster may take to come to rest after a fault.
	deadline = 2 * time.Minute
	// calm is how long Muster must leave correct objects alone.
	calm         = 500 * time.Millisecond
	pollInterval = 100 * time.Millisecond
	// fewest is the number of requests below which people did next to nothing.
	fewest = 30
)

// play makes a fault strike once. The error is the harness's, not Muster's.
func (l *lab) play(ctx context.Context, f fault, seed uint64) (r *run, err error) {
	l.runs++
	w, err := newWorld(ctx, l.admin, fmt.Sprintf("run%d", l.runs))
	if err != nil {
		return nil, err
	}
	if w.agentInitiated = f.agentInitiated; w.agentInitiated {
		if err := l.withRegistrar(ctx); err != nil {
			return nil, err
		}
		stop := w.playFleet(ctx, l.admin)
		defer func() { err = errors.Join(err, stop()) }()
	}
	if f.helm {
		if err := l.withHelm(ctx); err != nil {
			return nil, err
		}
		if err := w.prepareHelm(ctx, l); err != nil {
			return nil, err
		}
	}
	r = &run{lab: l, world: w, tally: &tally{}, rng: rand.New(rand.NewPCG(seed, workers)), mend: func() {}}
	if err := poll.Until(ctx, "the webhooks to answer", time.Minute, r.answers); err != nil {
		return r, err
	}
	l.kubelet.reset()
	working, giveUp := context.WithCancel(ctx)
	defer giveUp()
	people := newChurn(working, r, seed)
	err = r.pause(ctx, 500*time.Millisecond, 3*time.Second)
	if err == nil {
		err = f.strike(ctx, r)
	}
	if r.over.IsZero() {
		r.over = time.Now()
	}
	if err != nil {
		giveUp() // The API server may be gone for good.
	}
	people.finish()
	if err == nil {
		r.converge(ctx)
	}
	r.mend()
	if r.converged {
		r.empty(ctx)
	}
	return r, err
}

// verdict returns the checks that Muster failed.
func (r *run) verdict() error {
	err := r.problem
	if !r.converged {
		err = errors.Join(errors.New("it did not converge"), err)
	}
	for what, list := range map[string][]string{"lost": r.lost, "orphaned": r.orphaned, "wrongly failed": r.wrong} {
		if len(list) > 0 {
			err = errors.Join(fmt.Errorf("%s:\n%s", what, strings.Join(list, "\n")), err)
		}
	}
	if r.requests.Load() < fewest {
		err = errors.Join(fmt.Errorf("people asked for next to nothing: %d requests", r.requests.Load()), err)
	}
	return err
}

// converge waits until the objects match the people's wishes, and the webhooks answer.
func (r *run) converge(ctx context.Context) {
	want := r.expected()
	var got oracle.State
	var since time.Time
	for end := time.Now().Add(deadline); time.Now().Before(end); _ = sleep(ctx, pollInterval) {
		got, r.problem = r.compare(ctx, want)
		switch {
		case r.problem != nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= calm:
			r.converged, r.took = true, max(0, since.Sub(r.over))
			return
		}
	}
	r.lost, r.orphaned = oracle.Missing(want, got), oracle.Extra(want, got)
}

// compare returns the observed state, and its differences.
func (r *run) compare(ctx context.Context, want oracle.State) (oracle.State, error) {
	ctx, done := context.WithTimeout(ctx, requestTimeout)
	defer done()
	seen, err := r.observe(ctx, r.admin)
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

// empty deletes everything that people made. Objects of Muster that remain are orphaned.
func (r *run) empty(ctx context.Context) {
	for _, object := range r.wishes() {
		if err := r.admin.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			r.problem = err
		}
	}
	if err := poll.Until(ctx, "nothing to be left", deadline, func(ctx context.Context) error {
		seen, err := r.observe(ctx, r.admin)
		if err != nil {
			return err
		}
		if r.orphaned = oracle.Extra(oracle.NewState(), seen); len(r.orphaned) > 0 {
			return fmt.Errorf("there is %v", r.orphaned)
		}
		return nil
	}); err != nil {
		r.problem = err
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
	for _, proxy := range w.state.Helm.Proxies {
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
