package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxStart limits the processor time of a start, as a multiple of that of a process that only fills the same
	// caches.
	maxStart = 1.5
	// maxStartWait is how many seconds a Cluster may wait that is initialized during a start, counted from when the
	// first Cluster could be imported.
	maxStartWait = 2
)

// measureStart starts the syncer twice while all Clusters are imported: once alone, and once while
// newcomers become ready to be imported.
func (s *session) measureStart(ctx context.Context, newcomers *generator, least least) error {
	s.say("%d Clusters: start", least.n)
	p, err := s.restartSyncer(ctx, least.n)
	if err != nil {
		return err
	}
	asked := p.requests.afterStart()
	memory, err := s.atRest(ctx, syncer)
	if err != nil {
		return err
	}
	if err := s.warmUp(ctx, newcomers); err != nil {
		return err
	}
	waited, err := s.importDuringStart(ctx, newcomers)
	if err != nil {
		return err
	}
	t := table{title: "Start of the syncer"}
	t.note("%d Clusters; processor time: from the start of the process until it has looked at all Clusters, by its own metrics, and is idle; nothing else happens meanwhile", least.n)
	t.note("baseline: a process that fills the same caches, keeps the names only and does nothing else")
	t.note("then another start, in which %d control planes are initialized, one every 0.5 s, until the first of their Clusters is imported. "+
		"The first that can be imported is the first Cluster whose reconcile is completed (controller_runtime_reconcile_total), or whose Fleet Cluster is written; "+
		"from then on, or from its own initialization if that is later, each one waits until its Fleet Cluster is written", len(waited))
	t.add(
		value("processor time", "s", p.cpu.Seconds()).against(least.filling.Seconds()).ratioAtMost(maxStart),
		value("writes and GETs", "", float64(len(asked.of(write))+len(asked.of(read)))).atMost(0),
		value("syncer, at most", "MiB", memory.Peak).atMost(maxSyncer),
		value("longest wait of one initialized meanwhile", "s", slices.Max(waited).Seconds()).atMost(maxStartWait),
	)
	s.print(t)
	return nil
}

// importDuringStart restarts the syncer, and initializes one control plane after the other until the first of their
// Clusters is imported. For each it returns how long it could have been imported but was not.
func (s *session) importDuringStart(ctx context.Context, g *generator) ([]time.Duration, error) {
	const (
		pause = 100 * time.Millisecond
		every = 5 // pauses
		most  = 40
	)
	from, to := g.take(most)
	if err := s.create(ctx, g, from, to); err != nil {
		return nil, err
	}
	if err := s.env.Stop(ctx, syncer); err != nil {
		return nil, err
	}
	p, err := s.follow(syncer)
	if err != nil {
		return nil, err
	}
	if err := s.env.Start(ctx, syncer); err != nil {
		return nil, err
	}
	initialized := map[client.ObjectKey]time.Time{}
	// This is the last time at which the syncer's metrics counted no reconcile: the first one was completed after that.
	none, some := p.start, false
	for pauses := 0; !some || len(p.requests.fleetWrites(initialized)) == 0; pauses++ {
		if i := from + len(initialized); pauses%every == 0 && i < to {
			if err := g.initialize(ctx, i); err != nil {
				return nil, err
			}
			initialized[g.key(i)] = p.start
		}
		asked := time.Now()
		if now, err := s.reconciles(ctx); err == nil && !some {
			if some = now > 0; !some {
				none = asked
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
		if _, err := p.read(); err != nil {
			return nil, err
		}
		if time.Since(p.start) > patience {
			return nil, fmt.Errorf("none of %d Clusters is imported %s after the syncer's start", len(initialized), patience)
		}
	}
	if err := p.written(ctx, initialized); err != nil {
		return nil, err
	}
	return waits(none, p.changes, p.requests.fleetWrites(initialized)), p.quiet(ctx)
}

// waits returns how long each Cluster waited. The wait starts at its initialization or, if later, when the first
// import became possible: when the syncer had last completed no reconcile, or earlier, when the first Cluster was written.
func waits(none time.Time, initialized, written map[client.ObjectKey]request) (result []time.Duration) {
	ready := none
	for _, write := range written {
		if write.completed.Before(ready) {
			ready = write.completed
		}
	}
	for key, write := range written {
		since := initialized[key].completed
		if since.Before(ready) {
			since = ready
		}
		result = append(result, max(0, write.completed.Sub(since)))
	}
	return result
}
