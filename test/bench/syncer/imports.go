package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/load"
)

// burst is what importing many Clusters at once was like.
type burst struct {
	count    int
	elapsed  time.Duration
	requests requests
	// cpu and apiserver are the processor time that the syncer and the API server used.
	cpu, apiserver time.Duration
}

func (b burst) perSecond() float64 { return float64(b.count) / b.elapsed.Seconds() }

// perImport divides a count by the number of imports.
func (b burst) perImport(count int) float64 { return float64(count) / float64(b.count) }

// importAtOnce measures the syncer: the Clusters wait for their control planes, these are
// initialized while the import is off, and then it is turned on. It is over with the
// last write of the last Cluster.
func (s *session) importAtOnce(ctx context.Context, g *load.Generator, from, to int, profile string) (burst, error) {
	if err := s.configure(ctx, false); err != nil {
		return burst{}, err
	}
	if err := g.InitializeAll(ctx, from, to); err != nil {
		return burst{}, err
	}
	if err := s.quiet(ctx); err != nil {
		return burst{}, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return burst{}, err
	}
	var profiling errgroup.Group
	if profile != "" {
		profiling.Go(func() error { return s.save(ctx, syncer, "profile?seconds=5", profile) })
		profiling.Go(func() error { return s.save(ctx, apiserver, "profile?seconds=5", "apiserver-"+profile) })
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return burst{}, err
		}
	}
	apiserverBefore, err := s.cpu(apiserver)
	if err != nil {
		return burst{}, err
	}
	p.start = time.Now()
	if err := s.configure(ctx, true); err != nil {
		return burst{}, err
	}
	if err := p.written(ctx, keysAt(g, from, to, p.start)); err != nil {
		return burst{}, err
	}
	apiserverAfter, err := s.cpu(apiserver)
	if err != nil {
		return burst{}, err
	}
	if err := p.quiet(ctx); err != nil {
		return burst{}, err
	}
	result := burst{count: to - from, elapsed: p.requests.lastWrite().Sub(p.start), requests: p.requests, apiserver: apiserverAfter - apiserverBefore}
	if result.cpu, err = p.work(); err != nil {
		return burst{}, err
	}
	return result, profiling.Wait()
}

func keysAt(g *load.Generator, from, to int, at time.Time) map[client.ObjectKey]time.Time {
	keys := make(map[client.ObjectKey]time.Time, to-from)
	for i := from; i < to; i++ {
		keys[g.Key(i)] = at
	}
	return keys
}

// importSteadily initializes control planes at a rate, and returns how long after each its
// Fleet Cluster was written. Who imports is the syncer, if importer is nil, or a client
// that knows as soon as the control plane is initialized.
func (s *session) importSteadily(ctx context.Context, g *load.Generator, from, to int, rate float64, importer *bare) (latencies, error) {
	user := syncerUser
	if importer != nil {
		user = bareUser
	}
	p, err := s.follow(user, syncer)
	if err != nil {
		return nil, err
	}
	if err := load.Pace(ctx, rate, from, to, func(ctx context.Context, i int) error {
		if err := g.Initialize(ctx, i); err != nil || importer == nil {
			return err
		}
		return importer.importOne(ctx, i)
	}); err != nil {
		return nil, err
	}
	return p.latencies(ctx, keysAt(g, from, to, p.start))
}

// create makes Clusters that wait for their control planes, and waits until the syncer has
// said so on each.
func (s *session) create(ctx context.Context, g *load.Generator, from, to int) error {
	if err := g.Create(ctx, from, to); err != nil {
		return err
	}
	return s.quiet(ctx)
}

// importAll imports Clusters as fast as that can be done, with nothing measured: the syncer
// does not run until they are initialized, and so writes what it has to once.
func (s *session) importAll(ctx context.Context, g *load.Generator, from, to int) error {
	s.say("import %d Clusters", to-from)
	if err := s.env.Stop(ctx, syncer); err != nil {
		return err
	}
	if err := g.Create(ctx, from, to); err != nil {
		return err
	}
	if err := g.InitializeAll(ctx, from, to); err != nil {
		return err
	}
	p, err := s.followSyncer()
	if err != nil {
		return err
	}
	if err := s.env.Start(ctx, syncer); err != nil {
		return err
	}
	if err := p.written(ctx, keysAt(g, from, to, p.start)); err != nil {
		return err
	}
	return p.quiet(ctx)
}

// warmUp imports one Cluster of each class in each namespace: afterwards all groups and
// mappings are there.
func (s *session) warmUp(ctx context.Context, g *load.Generator) (count int, err error) {
	count = g.Namespaces * g.Classes
	if err := g.Prepare(ctx); err != nil {
		return 0, err
	}
	if err := g.Create(ctx, 0, count); err != nil {
		return 0, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return 0, err
	}
	if err := g.InitializeAll(ctx, 0, count); err != nil {
		return 0, err
	}
	if err := p.written(ctx, keysAt(g, 0, count, time.Time{})); err != nil {
		return 0, err
	}
	return count, p.quiet(ctx)
}
