package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	arrivalsPerSecond = 5
	// maxArrival is how long, in ms, a new import may take while the syncer reconciles all
	// others again.
	maxArrival = 1000
	// minArrivals is the least number for which a p99 is not just the slowest of all.
	minArrivals = 120
)

// measureArrivals imports new Clusters, a few per second: when nothing else happens, while
// labels of all classes change, and while the FleetAddonConfig changes. Half of the baseline
// comes before the others, and half after them.
func (s *session) measureArrivals(ctx context.Context, g, newcomers *generator) error {
	count := max(minArrivals, min(200, g.next/25))
	s.say("%d Clusters: import %d at %d/s, alone and while all are looked at again", g.next, count, arrivalsPerSecond)
	from := newcomers.next
	if err := s.create(ctx, newcomers, from, from+3*count); err != nil {
		return err
	}
	take := func(count int, again func(context.Context) error) ([]time.Duration, int, error) {
		from, to := newcomers.take(count)
		return s.importWhile(ctx, newcomers, from, to, again)
	}
	alone, _, err := take(count/2, nil)
	if err != nil {
		return err
	}
	labelled, labelChanges, err := take(count, func(ctx context.Context) error {
		p, err := s.follow(syncer)
		if err != nil {
			return err
		}
		return s.relabelAll(ctx, p, g)
	})
	if err != nil {
		return err
	}
	suffixes := []string{"-renamed", ""}
	configured, configChanges, err := take(count, func(ctx context.Context) error {
		suffixes[0], suffixes[1] = suffixes[1], suffixes[0]
		return s.renameAndReconcile(ctx, suffixes[1], g.next)
	})
	if err != nil {
		return err
	}
	after, _, err := take(count-count/2, nil)
	if err != nil {
		return err
	}
	alone = append(alone, after...)
	t := table{title: "Imports while all others are reconciled again"}
	t.note("%d imported Clusters; new ones initialized at %d/s, %d each time; baseline: nothing else happens; half of them before the others, half after", g.next, arrivalsPerSecond, count)
	t.note("a label of all classes changes, and with it every Fleet Cluster (%d times); spec.cluster.naming.suffix changes, and with it no Cluster (%d times); each time as soon as the syncer is done with the time before",
		labelChanges, configChanges)
	for _, during := range []struct {
		name  string
		times []time.Duration
	}{{"a label of the classes changes", labelled}, {"the FleetAddonConfig changes", configured}} {
		t.add(value(during.name+": initialized to imported, p99", "ms", quantile(during.times, .99)).against(quantile(alone, .99)).atMost(maxArrival))
	}
	s.print(t)
	return nil
}

// importWhile imports Clusters at a rate. Meanwhile it calls again, round after round, which makes the
// syncer reconcile all others. It returns when both are over, with the number of rounds.
func (s *session) importWhile(ctx context.Context, g *generator, from, to int, again func(context.Context) error) (result []time.Duration, rounds int, err error) {
	group, working := errgroup.WithContext(ctx)
	imports, imported := context.WithCancel(working)
	group.Go(func() (err error) {
		defer imported()
		result, err = s.importSteadily(working, g, from, to, arrivalsPerSecond, nil)
		return err
	})
	if again != nil {
		group.Go(func() error {
			for ; imports.Err() == nil; rounds++ {
				if err := again(working); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, rounds, err
	}
	return result, rounds, s.quiet(ctx)
}

// renameAndReconcile renames, and waits for n reconciles. It does not wait for quiet: new imports go on.
func (s *session) renameAndReconcile(ctx context.Context, suffix string, n int) error {
	before, err := s.reconciles(ctx)
	if err != nil {
		return err
	}
	if err := s.rename(ctx, suffix); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		now, err := s.reconciles(ctx)
		return now-before >= n, err
	})
}
