package main

import (
	"context"
	"time"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/stack"
)

// restart is what a start of the syncer costs when all Clusters are imported.
type restart struct {
	requests requests
	cpu      time.Duration
	// elapsed is how long after the start of the process a Cluster was imported whose
	// control plane was initialized meanwhile.
	elapsed time.Duration
}

// canary makes one Cluster more for each restart, in a namespace of its own.
type canary struct {
	*load.Generator
	next int
}

func newCanary(ctx context.Context, s *session) (*canary, error) {
	c := &canary{Generator: s.generator()}
	c.Shape = load.Shape{Prefix: "canary", Namespaces: 1, Classes: 1}
	count, err := s.warmUp(ctx, c.Generator)
	c.next = count
	return c, err
}

func (s *session) measureRestart(ctx context.Context) (r restart, err error) {
	c, number := s.canary, s.canary.next
	c.next++
	if err := s.create(ctx, c.Generator, number, number+1); err != nil {
		return r, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return r, err
	}
	if err := s.env.Stop(ctx, syncer); err != nil {
		return r, err
	}
	begin := time.Now()
	if err := s.env.Start(ctx, syncer); err != nil {
		return r, err
	}
	if err := c.Initialize(ctx, number); err != nil {
		return r, err
	}
	if err := p.written(ctx, keysAt(c.Generator, number, number+1, begin)); err != nil {
		return r, err
	}
	if err := p.quiet(ctx); err != nil {
		return r, err
	}
	r.elapsed = p.requests.fleetWrites(keysAt(c.Generator, number, number+1, begin))[c.Key(number)].completed.Sub(begin)
	r.requests = p.requests.where(func(e stack.AuditEvent) bool { return e.Namespace != c.Namespace(number) })
	r.cpu, err = s.cpu(syncer)
	return r, err
}
