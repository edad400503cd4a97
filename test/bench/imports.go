package main

import (
	"context"
	"time"

	"github.com/muster-fleet/muster/test/stack"
)

const (
	// namespaces and classes are the numbers of namespaces and classes of the Clusters.
	namespaces, classes = 10, 4
	// minThroughput is the share of the bare client's throughput that the syncer must reach.
	minThroughput = 0.9
	// maxLatency limits the syncer's p50 and p99, as a multiple of the bare client's.
	maxLatency = 2
)

// measureImports compares imports with a bare client that makes the same writes: half of its Clusters
// before the syncer's, half after.
func measureImports(ctx context.Context, s *session) error {
	g := s.clusters("bench", namespaces, classes)
	if err := s.enable(ctx, true); err != nil {
		return err
	}
	if err := s.warmUp(ctx, g); err != nil {
		return err
	}
	b, err := newBare(ctx, s)
	if err != nil {
		return err
	}
	if _, err := b.importAtOnce(ctx, namespaces*classes); err != nil { // This is the warm-up.
		return err
	}
	atOnce, steady := s.n*2/5, s.n/5
	s.say("import %d at once", atOnce)
	before, err := b.importAtOnce(ctx, atOnce/2)
	if err != nil {
		return err
	}
	ours, err := s.importAtOnce(ctx, g, atOnce)
	if err != nil {
		return err
	}
	after, err := b.importAtOnce(ctx, atOnce-atOnce/2)
	if err != nil {
		return err
	}
	bares := burst{count: atOnce, elapsed: before + after}
	s.print(atOnceTable(ours, bares))
	return s.compareSteadily(ctx, g, b, steady, bares.perSecond()/2)
}

func atOnceTable(ours, bares burst) table {
	t := table{title: "Imports at once"}
	t.note("%d Clusters of %d classes in %d namespaces; one write turns the import on and releases them all; %d reconciles at a time, as shipped",
		ours.count, classes, namespaces, workers)
	t.note("baseline: a client that makes the same three writes of prepared content, %d imports at a time, while the syncer is stopped, "+
		"beside a process that keeps the same caches; half of its imports before, half after", workers)
	t.add(
		value("imports", "/s", ours.perSecond()).against(bares.perSecond()).ratioAtLeast(minThroughput),
		value("writes per import", "", float64(len(ours.requests.of(write)))/float64(ours.count)).against(3).atMost(3),
		value("GET and LIST", "", float64(len(ours.requests.of(read)))).against(0).atMost(0),
		value("processor time per import", "ms", perOne(ours.cpu, ours.count)),
	)
	return t
}

// compareSteadily imports at half of the machine's maximum rate: near the maximum, it would measure the queue, and
// not the client.
func (s *session) compareSteadily(ctx context.Context, g *generator, b *bare, count int, rate float64) error {
	s.say("import %d at %.1f/s", count, rate)
	bares, err := b.importSteadily(ctx, count/2, rate)
	if err != nil {
		return err
	}
	from, to := g.take(count)
	if err := s.create(ctx, g, from, to); err != nil {
		return err
	}
	ours, err := s.importSteadily(ctx, g, from, to, rate, nil)
	if err != nil {
		return err
	}
	after, err := b.importSteadily(ctx, count-count/2, rate)
	if err != nil {
		return err
	}
	bares = append(bares, after...)
	t := table{title: "Imports at half the rate that the bare client reached at once"}
	t.note("%d control planes initialized at %.1f/s; from the answer to that until the answer to the write of the Fleet Cluster, by the API server's audit log", count, rate)
	t.note("baseline: the same client, which is told by whoever initializes the control plane")
	t.add(
		value("initialized to imported, p50", "ms", quantile(ours, .5)).against(quantile(bares, .5)).ratioAtMost(maxLatency),
		value("initialized to imported, p99", "ms", quantile(ours, .99)).against(quantile(bares, .99)).ratioAtMost(maxLatency),
	)
	s.print(t)
	return nil
}

// burst holds the measurements of many imports at once.
type burst struct {
	count    int
	elapsed  time.Duration
	cpu      time.Duration
	requests requests
}

func (b burst) perSecond() float64 { return float64(b.count) / b.elapsed.Seconds() }

// importAtOnce imports new Clusters. They wait for their control planes, which are initialized while the import is
// off; then the import is turned on. It ends with the last write of the last Cluster.
func (s *session) importAtOnce(ctx context.Context, g *generator, count int) (burst, error) {
	from, to := g.take(count)
	if err := s.create(ctx, g, from, to); err != nil {
		return burst{}, err
	}
	if err := s.enable(ctx, false); err != nil {
		return burst{}, err
	}
	if err := g.each(ctx, from, to, g.initialize); err != nil {
		return burst{}, err
	}
	if err := s.quiet(ctx); err != nil {
		return burst{}, err
	}
	p, err := s.during(ctx, syncer, func(p *phase) error {
		if err := s.enable(ctx, true); err != nil {
			return err
		}
		return p.written(ctx, g.keys(from, to, p.start))
	})
	return burst{count: count, elapsed: p.requests.lastWrite().Sub(p.start), requests: p.requests, cpu: p.cpu}, err
}

// importSteadily initializes control planes at a rate, and returns how long after each the syncer, or the bare client
// if there is one, wrote its Fleet Cluster.
func (s *session) importSteadily(ctx context.Context, g *generator, from, to int, rate float64, b *bare) ([]time.Duration, error) {
	process, user := syncer, stack.ServiceAccount("muster-system", syncer)
	if b != nil {
		process, user = apiserver, bareUser
	}
	p, err := s.follow(process)
	if err != nil {
		return nil, err
	}
	p.user = user
	if err := pace(ctx, rate, from, to, func(ctx context.Context, i int) error {
		if err := g.initialize(ctx, i); err != nil || b == nil {
			return err
		}
		return b.importOne(ctx, i)
	}); err != nil {
		return nil, err
	}
	return p.latencies(ctx, g.keys(from, to, p.start))
}

// create makes Clusters that wait for their control planes, and waits until the syncer has reported that on each.
func (s *session) create(ctx context.Context, g *generator, from, to int) error {
	if err := g.create(ctx, from, to, allFiles...); err != nil {
		return err
	}
	return s.quiet(ctx)
}

// importAll imports new Clusters as fast as possible, without measuring: the syncer does not run until they are
// initialized, so that it writes each object only once.
func (s *session) importAll(ctx context.Context, g *generator, count int) error {
	s.say("import %d Clusters", count)
	if err := s.env.Stop(ctx, syncer); err != nil {
		return err
	}
	from, to := g.take(count)
	if err := g.create(ctx, from, to, allFiles...); err != nil {
		return err
	}
	if err := g.each(ctx, from, to, g.initialize); err != nil {
		return err
	}
	_, err := s.during(ctx, syncer, func(p *phase) error {
		if err := s.env.Start(ctx, syncer); err != nil {
			return err
		}
		return p.written(ctx, g.keys(from, to, p.start))
	})
	return err
}

// warmUp imports one Cluster of each class in each namespace, so that all groups and mappings exist.
func (s *session) warmUp(ctx context.Context, g *generator) error {
	if err := g.prepare(ctx); err != nil {
		return err
	}
	return s.importAll(ctx, g, g.namespaces*g.classes)
}
