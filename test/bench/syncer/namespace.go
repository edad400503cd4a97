package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	// maxWorkGrowth is how many times the processor time of an event may be with all
	// Clusters what it is with a tenth of them. It leaves room for noise, and none for
	// work that grows with the Clusters.
	maxWorkGrowth = 1.5
	// maxRequestsGrowth is the same for requests, which have hardly any noise.
	maxRequestsGrowth = 1.1
)

// crowd is what events cost in a namespace with many Clusters.
type crowd struct {
	n                         int
	changed, created, deleted cost
}

// cost is that of a number of events.
type cost struct {
	count    int
	cpu      time.Duration
	requests requests
}

func (c cost) work() float64 { return perOne(c.cpu, c.count) }

func (c cost) requestsEach() float64 {
	return float64(len(c.requests.of(write, false))+len(c.requests.of(read, false))) / float64(c.count)
}

// measureNamespace puts all Clusters into one namespace. They are of one class, which is in
// another, so that they share one group and one mapping.
func measureNamespace(ctx context.Context, o options) (tables []report.Table, err error) {
	s, err := open(ctx, o, stack.Options{Profile: stack.API})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(tables)) }()
	if err := s.configure(ctx, true); err != nil {
		return nil, err
	}
	g := s.generator()
	g.Shape = load.Shape{Prefix: "crowd", Namespaces: 1, Classes: 1}
	have, err := s.warmUp(ctx, g)
	if err != nil {
		return nil, err
	}
	var crowds []crowd
	for i, n := range steps(o.n) {
		if err := s.importAll(ctx, g, have, n); err != nil {
			return namespaceTables(crowds), err
		}
		have = n
		// Numbers that no other Cluster has or had.
		c, err := s.measureCrowd(ctx, g, n, (i+1)*100_000)
		if err != nil {
			return namespaceTables(crowds), fmt.Errorf("with %d Clusters: %w", n, err)
		}
		crowds = append(crowds, c)
	}
	return namespaceTables(crowds), nil
}

// measureCrowd changes some of the Clusters, adds new ones from a number on, and takes
// those away again.
func (s *session) measureCrowd(ctx context.Context, g *load.Generator, n, from int) (c crowd, err error) {
	c.n = n
	count := min(n, 100)
	s.say("%d Clusters in one namespace: %d are changed, created, deleted", n, count)
	if c.changed, err = s.costOf(ctx, count, func(p *phase) error { return s.relabelSome(ctx, p, g, n, count) }); err != nil {
		return c, err
	}
	if c.created, err = s.costOf(ctx, count, func(p *phase) error { return s.createSome(ctx, p, g, from, from+count) }); err != nil {
		return c, err
	}
	c.deleted, err = s.costOf(ctx, count, func(*phase) error { return s.deleteSome(ctx, g, from, from+count) })
	return c, err
}

// costOf measures the syncer from the first event until it is quiet after the last.
func (s *session) costOf(ctx context.Context, count int, events func(*phase) error) (c cost, err error) {
	if err := s.quiet(ctx); err != nil {
		return c, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return c, err
	}
	if err := events(p); err != nil {
		return c, err
	}
	if err := p.quiet(ctx); err != nil {
		return c, err
	}
	c.count, c.requests = count, p.requests
	c.cpu, err = p.work()
	return c, err
}

// relabelSome changes a label of Clusters all over the namespace.
func (s *session) relabelSome(ctx context.Context, p *phase, g *load.Generator, n, count int) error {
	after := map[client.ObjectKey]time.Time{}
	for i := range count {
		after[g.Key(i*n/count)] = p.start
	}
	if err := load.Pace(ctx, eventsPerSecond, 0, count, func(ctx context.Context, i int) error {
		object, err := g.Object(load.ClusterFile, i*n/count)
		if err != nil {
			return err
		}
		return s.admin.Patch(ctx, object, labelPatch(clusterLabel, n))
	}); err != nil {
		return err
	}
	return p.written(ctx, after)
}

// createSome creates Clusters, and initializes their control planes when all are there.
func (s *session) createSome(ctx context.Context, p *phase, g *load.Generator, from, to int) error {
	if err := load.Pace(ctx, eventsPerSecond, from, to, func(ctx context.Context, i int) error {
		return g.Create(ctx, i, i+1)
	}); err != nil {
		return err
	}
	if err := p.quiet(ctx); err != nil {
		return err
	}
	if err := load.Pace(ctx, eventsPerSecond, from, to, g.Initialize); err != nil {
		return err
	}
	return p.written(ctx, keysAt(g, from, to, p.start))
}

func namespaceTables(crowds []crowd) []report.Table {
	if len(crowds) == 0 {
		return nil
	}
	first, last := crowds[0], crowds[len(crowds)-1]
	table := report.Table{Title: "One namespace, one class"}
	table.Note("all Clusters are in one namespace and of one class of another namespace; baseline: with %d Clusters; %d events of each kind, %d a second, until the syncer is quiet",
		first.n, first.changed.count, eventsPerSecond)
	table.Note("created: with control plane and infrastructure object, and initialized when all are there; deleted: the Cluster, then what it refers to, until the garbage collector has deleted the Fleet Cluster")
	for _, kind := range []struct {
		name string
		of   func(crowd) cost
	}{
		{"a Cluster's label changes", func(c crowd) cost { return c.changed }},
		{"a Cluster is created and imported", func(c crowd) cost { return c.created }},
		{"a Cluster is deleted", func(c crowd) cost { return c.deleted }},
	} {
		table.Note("%s: %s", kind.name, kind.of(last).requests)
		for i, c := range crowds {
			at := fmt.Sprintf("%s, %d Clusters", kind.name, c.n)
			work := report.Value("processor time: "+at, "ms", kind.of(c).work())
			each := report.Value("requests: "+at, "", kind.of(c).requestsEach())
			if i > 0 {
				work, each = work.Against(kind.of(first).work()), each.Against(kind.of(first).requestsEach())
			}
			if i > 0 && i == len(crowds)-1 {
				// Not by the ratio: a kind of event may cause no request at all.
				work, each = work.RatioAtMost(maxWorkGrowth), each.AtMost(maxRequestsGrowth*kind.of(first).requestsEach())
			}
			table.Add(work, each)
		}
	}
	return []report.Table{table}
}
