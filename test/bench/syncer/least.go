package main

import (
	"context"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"

	"github.com/muster-fleet/muster/test/bench/load"
)

// bareLabel is on Fleet Clusters that the bare client wrote.
const bareLabel = "bench.example.com/bare"

// least is what anyone needs who watches all Clusters, and who writes to each.
type least struct {
	// filling is the processor time of a process that fills caches and does nothing else.
	filling time.Duration
	// writes is how long one write to each Fleet Cluster takes, as many at a time as the
	// syncer reconciles.
	writes time.Duration
}

// measureLeast measures with imported Clusters, while the syncer does not run.
func (s *session) measureLeast(ctx context.Context, g *load.Generator, n int) (l least, err error) {
	if err := s.env.Stop(ctx, syncer); err != nil {
		return l, err
	}
	c, err := s.fillCaches(ctx)
	if err != nil {
		return l, err
	}
	if l.filling, err = c.end(); err != nil {
		return l, err
	}
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(s.workers)
	begin := time.Now()
	for i := range n {
		group.Go(func() error {
			cluster := &fleetv1.Cluster{}
			cluster.Namespace, cluster.Name = g.Key(i).Namespace, g.Key(i).Name
			if err := s.admin.Patch(writing, cluster, labelPatch(bareLabel, n)); err != nil {
				return fmt.Errorf("labelling a Fleet Cluster: %w", err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return l, err
	}
	l.writes = time.Since(begin)
	if err := s.startSyncer(ctx); err != nil {
		return l, err
	}
	return l, s.quiet(ctx)
}

// fillingEach is the processor time of filling caches, in ms for each Cluster.
func (l level) fillingEach() float64 { return perOne(l.least.filling, l.n) }
