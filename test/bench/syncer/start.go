package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/report"
)

// maxStart is how many times the processor time of a process that fills the same caches, and
// does nothing else, a start may take.
const maxStart = 1.5

// maxStartWait is how many seconds after the first that can be imported a Cluster may wait
// that is initialized during a start.
const maxStartWait = 2

// start is what a start of the syncer costs when all Clusters are imported.
type start struct {
	// look is from the start until all are looked at.
	look look
	// during is another start, in which Clusters become ready to be imported.
	during during
}

// during is what happens to Clusters whose control planes are initialized during a start.
type during struct {
	count int
	// ready is how long after the start the first Cluster could have been imported, and
	// first how long after it the first one was.
	ready, first time.Duration
	// waits are how long each was not imported although it could have been.
	waits []time.Duration
}

// canaries are Clusters, in a namespace of their own, whose control planes are initialized
// during starts.
type canaries struct {
	*load.Generator
	// next is the number of the first that there never was.
	next int
}

func newCanaries(ctx context.Context, s *session) (*canaries, error) {
	c := &canaries{Generator: s.generator()}
	c.Shape = load.Shape{Prefix: "canary", Namespaces: 1, Classes: 1}
	count, err := s.warmUp(ctx, c.Generator)
	c.next = count
	return c, err
}

func (s *session) measureStart(ctx context.Context, n int) (r start, err error) {
	if s.canaries == nil {
		if s.canaries, err = newCanaries(ctx, s); err != nil {
			return r, err
		}
	}
	if r.look, err = s.startAndLook(ctx, n); err != nil {
		return r, err
	}
	r.during, err = s.importDuringStart(ctx)
	return r, err
}

// startAndLook starts the syncer, anew if it runs.
func (s *session) startAndLook(ctx context.Context, n int) (l look, err error) {
	p, err := s.followSyncer()
	if err != nil {
		return l, err
	}
	if err := s.env.Stop(ctx, syncer); err != nil {
		return l, err
	}
	p.cpu = 0
	if err := s.env.Start(ctx, syncer); err != nil {
		return l, err
	}
	var profiling errgroup.Group
	profiling.Go(func() error { return s.save(ctx, syncer, "profile?seconds=10", fmt.Sprintf("start-cpu-%d.pprof", n)) })
	l.wanted = n
	l.looks, l.cpu, err = p.lookedAt(ctx, counts{}, n)
	l.requests = p.requests
	return l, errors.Join(err, profiling.Wait())
}

// importDuringStart starts the syncer anew, and initializes one control plane after the
// other until the first of their Clusters is imported.
//
// The first that can be imported is the first of all Clusters that the syncer got to the end
// with: either one that its metrics count as imported, as all were before, or one whose Fleet
// Cluster it has written. From then on, or from the answer to the initialization of its own
// control plane if that is later, a Cluster can be imported, and waits until the answer to
// the write of its Fleet Cluster.
func (s *session) importDuringStart(ctx context.Context) (d during, err error) {
	const (
		pause = 100 * time.Millisecond
		every = 5 // pauses
		most  = 40
	)
	c := s.canaries
	from, to := c.next, c.next+most
	c.next = to
	if err := s.create(ctx, c.Generator, from, to); err != nil {
		return d, err
	}
	if err := s.env.Stop(ctx, syncer); err != nil {
		return d, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return d, err
	}
	begin := time.Now()
	if err := s.env.Start(ctx, syncer); err != nil {
		return d, err
	}
	keys := map[client.ObjectKey]time.Time{}
	// The last time that its metrics counted none: the first one was counted after that.
	none, some := begin, false
	for pauses := 0; !some || len(p.requests.fleetWrites(keys)) == 0; pauses++ {
		if pauses%every == 0 && d.count < most {
			if err := c.Initialize(ctx, from+d.count); err != nil {
				return d, err
			}
			keys[c.Key(from+d.count)] = begin
			d.count++
		}
		if !some {
			asked := time.Now()
			if now, err := s.counts(ctx); err == nil && now.imported == 0 {
				none = asked
			} else if err == nil {
				some = true
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return d, err
		}
		if _, err := p.read(); err != nil {
			return d, err
		}
		if time.Since(begin) > patience {
			return d, fmt.Errorf("none of %d Clusters is imported %s after the syncer's start", d.count, patience)
		}
	}
	if err := p.written(ctx, keys); err != nil {
		return d, err
	}
	d.measure(begin, none, p.changes, p.requests.fleetWrites(keys))
	// What is measured afterwards is to find as many Clusters as it is told.
	if err := s.deleteSome(ctx, c.Generator, from, to); err != nil {
		return d, err
	}
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
	ready := none
	if first.Before(ready) {
		ready = first
	}
	d.ready, d.first = ready.Sub(begin), first.Sub(begin)
	for key, write := range written {
		since := initialized[key].completed
		if since.Before(ready) {
			since = ready
		}
		d.waits = append(d.waits, max(0, write.completed.Sub(since)))
	}
}

func startTable(levels []level) report.Table {
	table := report.Table{Title: "Start of the syncer"}
	table.Note("processor time: from the start of the process until it has looked at all Clusters, by its own metrics, and is idle; nothing else happens meanwhile")
	table.Note("baseline: a process that fills the same caches, keeps the names only and does nothing else")
	table.Note("then another start, in which a control plane is initialized every 0.5 s (40 at most) until the first of their Clusters is imported. The first that can be imported is the first Cluster that muster_clusters{state=imported} counts, as each was imported before, or whose Fleet Cluster is written; from then on, or from its own initialization if that is later, each one waits until its Fleet Cluster is written")
	for _, l := range levels {
		at := fmt.Sprintf(", %d Clusters", l.n)
		d := l.start.during
		table.Note("%d Clusters: %d initialized during the start", l.n, d.count)
		table.Add(
			report.Value("processor time"+at, "s", l.start.look.cpu.Seconds()).Against(l.least.filling.Seconds()).RatioAtMost(maxStart),
			l.start.look.all("looks at Clusters"+at),
			report.Value("start until the first can be imported"+at, "s", d.ready.Seconds()),
			report.Value("start until the first is imported"+at, "s", d.first.Seconds()),
			report.Value("longest wait of one initialized meanwhile"+at, "s", slices.Max(d.waits).Seconds()).AtMost(maxStartWait),
		)
	}
	return table
}
