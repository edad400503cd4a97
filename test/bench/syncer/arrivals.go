package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/report"
)

const (
	arrivalsPerSecond = 5
	// maxArrival is how long, in ms, a new import may take while all others are looked at
	// again.
	maxArrival = 1000
	// minArrivals are as many as a p99 needs, to be more than the slowest of all.
	minArrivals = 120
)

// arrivals are imports of new Clusters, a few per second: when nothing else happens, while
// labels of all classes change, and while the FleetAddonConfig changes.
type arrivals struct {
	n                           int
	alone, labelled, configured latencies
	labelChanges, configChanges int
}

// measureArrivals imports half of those that are compared with before the others, and half
// after them.
func (s *session) measureArrivals(ctx context.Context, g *load.Generator, n int) (a arrivals, err error) {
	newcomers := s.generator()
	newcomers.Shape = load.Shape{Prefix: "new", Namespaces: 2, Classes: s.classes}
	next, err := s.warmUp(ctx, newcomers)
	if err != nil {
		return a, err
	}
	a.n = n
	count := max(minArrivals, min(200, n/25))
	s.say("%d Clusters: import %d at %d/s, alone and while all are looked at again", n, count, arrivalsPerSecond)
	if err := s.create(ctx, newcomers, next, next+3*count); err != nil {
		return a, err
	}
	take := func(count int, again func(context.Context) error) (latencies, int, error) {
		from := next
		next += count
		return s.importWhile(ctx, newcomers, from, next, again)
	}
	before, _, err := take(count/2, nil)
	if err != nil {
		return a, err
	}
	if a.labelled, a.labelChanges, err = take(count, func(ctx context.Context) error { return s.relabelAndWait(ctx, g, n) }); err != nil {
		return a, err
	}
	suffix := ""
	toggle := func(ctx context.Context) error {
		if suffix == "" {
			suffix = "-renamed"
		} else {
			suffix = ""
		}
		return s.renameAndWait(ctx, suffix, n)
	}
	if a.configured, a.configChanges, err = take(count, toggle); err != nil {
		return a, err
	}
	if suffix != "" {
		if err := toggle(ctx); err != nil {
			return a, err
		}
	}
	after, _, err := take(count-count/2, nil)
	a.alone = append(before, after...)
	return a, err
}

// importWhile imports Clusters at a rate. Meanwhile all others are looked at again and
// again: as soon as one round is over, the next one begins. It returns when both are over,
// with the number of rounds.
func (s *session) importWhile(ctx context.Context, g *load.Generator, from, to int, again func(context.Context) error) (result latencies, rounds int, err error) {
	imported := make(chan struct{})
	group, working := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		defer close(imported)
		result, err = s.importSteadily(working, g, from, to, arrivalsPerSecond, nil)
		return err
	})
	if again != nil {
		group.Go(func() error {
			for {
				select {
				case <-imported:
					return nil
				default:
				}
				rounds++
				if err := again(working); err != nil {
					return err
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		return nil, rounds, err
	}
	return result, rounds, s.quiet(ctx)
}

func (s *session) relabelAndWait(ctx context.Context, g *load.Generator, n int) error {
	p, err := s.followSyncer()
	if err != nil {
		return err
	}
	if err := s.relabelClasses(ctx, g); err != nil {
		return err
	}
	return p.written(ctx, keysAt(g, 0, n, p.start))
}

func (s *session) renameAndWait(ctx context.Context, suffix string, n int) error {
	before, err := s.counts(ctx)
	if err != nil {
		return err
	}
	if err := s.rename(ctx, suffix); err != nil {
		return err
	}
	for progress := (progress{from: before}); ; {
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return err
		}
		now, err := s.counts(ctx)
		if err != nil {
			return err
		}
		if progress.over(now, n) {
			return nil
		}
	}
}

func arrivalsTable(a arrivals) report.Table {
	table := report.Table{Title: "Imports while all others are looked at again"}
	table.Note("%d imported Clusters; new ones initialized at %d/s, %d each time; from the answer to that until the answer to the write of the Fleet Cluster, by the API server's audit log",
		a.n, arrivalsPerSecond, len(a.labelled))
	table.Note("baseline: nothing else happens; half of them before the others, half after")
	table.Note("a label of all classes changes, and with it every Fleet Cluster (%d times); spec.cluster.naming.suffix changes, and with it no Cluster (%d times); each time as soon as the syncer is done with the time before",
		a.labelChanges, a.configChanges)
	for _, during := range []struct {
		name  string
		times latencies
	}{{"a label of the classes changes", a.labelled}, {"the FleetAddonConfig changes", a.configured}} {
		compare := func(quantile string, at float64) report.Figure {
			return report.Value(during.name+": initialized to imported, "+quantile, "ms", report.Milliseconds(report.Quantile(during.times.written(), at))).
				Against(report.Milliseconds(report.Quantile(a.alone.written(), at)))
		}
		table.Add(compare("p50", .5), compare("p99", .99).AtMost(maxArrival), compare("the slowest", 1))
	}
	return table
}
