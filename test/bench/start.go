package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxStart is how many times the processor time of a process that fills the same caches, and
	// does nothing else, a start may take.
	maxStart = 1.5
	// maxStartWait is how many seconds after the first that can be imported a Cluster may wait
	// that is initialized during a start.
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
	d, err := s.importDuringStart(ctx, newcomers)
	if err != nil {
		return err
	}
	t := table{title: "Start of the syncer"}
	t.note("%d Clusters; processor time: from the start of the process until it has looked at all Clusters, by its own metrics, and is idle; nothing else happens meanwhile", least.n)
	t.note("baseline: a process that fills the same caches, keeps the names only and does nothing else")
	t.note("then another start, in which %d control planes are initialized, one every 0.5 s, until the first of their Clusters is imported. "+
		"The first that can be imported is the first Cluster that muster_clusters{state=imported} counts, as each was imported before, or whose Fleet Cluster is written; "+
		"from then on, or from its own initialization if that is later, each one waits until its Fleet Cluster is written", len(d.waits))
	t.add(
		value("processor time", "s", p.cpu.Seconds()).against(least.filling.Seconds()).ratioAtMost(maxStart),
		value("writes and GETs", "", float64(len(asked.of(write))+len(asked.of(read)))).atMost(0),
		value("syncer, at most", "MiB", memory.Peak).atMost(maxSyncer),
		value("start until the first is imported", "s", d.first.Seconds()),
		value("longest wait of one initialized meanwhile", "s", slices.Max(d.waits).Seconds()).atMost(maxStartWait),
	)
	s.print(t)
	return nil
}

// during is what happens to Clusters whose control planes are initialized during a start.
type during struct {
	// first is how long after the start the first of them was imported.
	first time.Duration
	// waits are how long each was not imported although it could have been.
	waits []time.Duration
}

// importDuringStart starts the syncer anew, and initializes one control plane after the
// other until the first of their Clusters is imported.
func (s *session) importDuringStart(ctx context.Context, g *generator) (d during, err error) {
	const (
		pause = 100 * time.Millisecond
		every = 5 // pauses
		most  = 40
	)
	from, to := g.take(most)
	if err := s.create(ctx, g, from, to); err != nil {
		return d, err
	}
	if err := s.env.Stop(ctx, syncer); err != nil {
		return d, err
	}
	p, err := s.follow(syncer)
	if err != nil {
		return d, err
	}
	if err := s.env.Start(ctx, syncer); err != nil {
		return d, err
	}
	initialized := map[client.ObjectKey]time.Time{}
	// The last time that its metrics counted none: the first one was counted after that.
	none, some := p.start, false
	for pauses := 0; !some || len(p.requests.fleetWrites(initialized)) == 0; pauses++ {
		if i := from + len(initialized); pauses%every == 0 && i < to {
			if err := g.initialize(ctx, i); err != nil {
				return d, err
			}
			initialized[g.key(i)] = p.start
		}
		asked := time.Now()
		if now, err := s.counts(ctx); err == nil && !some {
			if some = now.imported > 0; !some {
				none = asked
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return d, err
		}
		if _, err := p.read(); err != nil {
			return d, err
		}
		if time.Since(p.start) > patience {
			return d, fmt.Errorf("none of %d Clusters is imported %s after the syncer's start", len(initialized), patience)
		}
	}
	if err := p.written(ctx, initialized); err != nil {
		return d, err
	}
	d.measure(p.start, none, p.changes, p.requests.fleetWrites(initialized))
	return d, p.quiet(ctx)
}

// measure takes until when the syncer counted none, and when each Cluster was
// initialized and written.
func (d *during) measure(begin, none time.Time, initialized, written map[client.ObjectKey]request) {
	var first time.Time
	for _, write := range written {
		if first.IsZero() || write.completed.Before(first) {
			first = write.completed
		}
	}
	// ready is when the first could have been imported.
	ready := none
	if first.Before(ready) {
		ready = first
	}
	d.first = first.Sub(begin)
	for key, write := range written {
		since := initialized[key].completed
		if since.Before(ready) {
			since = ready
		}
		d.waits = append(d.waits, max(0, write.completed.Sub(since)))
	}
}
