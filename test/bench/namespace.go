package main

import (
	"context"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxWorkGrowth limits the processor time of an event with all Clusters, as a multiple of the time with a tenth
	// of them. It leaves room for noise, and none for work that grows with the Clusters.
	maxWorkGrowth = 1.5
	// maxRequestsGrowth is the same for requests, which have hardly any noise.
	maxRequestsGrowth = 1.1
	// eventsPerSecond is how many Clusters are changed, created or deleted.
	eventsPerSecond = 20

	clusterLabel = "bench.example.com/cluster"
)

// measureNamespace puts all Clusters into one namespace. They are of one class, which is in
// another, so that they share one group and one mapping.
func measureNamespace(ctx context.Context, s *session) error {
	if err := s.enable(ctx, true); err != nil {
		return err
	}
	g := s.clusters("crowd", 1, 1)
	if err := s.warmUp(ctx, g); err != nil {
		return err
	}
	few, many := s.n/10, s.n
	count := min(few, 100)
	t := table{title: "One namespace, one class"}
	t.note("%d Clusters in one namespace and of one class of another namespace; baseline: with %d; %d events of each kind, %d a second, until the syncer is quiet", many, few, count, eventsPerSecond)
	t.note("created: with control plane and infrastructure object, and initialized when all are there; deleted: the Cluster, then what it refers to, until the garbage collector has deleted the Fleet Cluster")
	first := map[string]*phase{}
	for _, n := range []int{few, many} {
		if err := s.importAll(ctx, g, n-g.next); err != nil {
			return err
		}
		s.say("%d Clusters in one namespace: %d are changed, created, deleted", n, count)
		for _, event := range []struct {
			name   string
			happen func(context.Context, *phase, *generator, int) error
		}{
			{"a Cluster's label changes", s.relabelSome},
			{"a Cluster is created and imported", s.createSome},
			{"a Cluster is deleted", s.deleteSome},
		} {
			p, err := s.during(ctx, syncer, func(p *phase) error { return event.happen(ctx, p, g, count) })
			if err != nil {
				return fmt.Errorf("with %d Clusters, %s: %w", n, event.name, err)
			}
			if before := first[event.name]; before != nil {
				each := func(p *phase) float64 {
					return float64(len(p.requests.of(write))+len(p.requests.of(read))) / float64(count)
				}
				t.add(
					value(event.name+": processor time", "ms", perOne(p.cpu, count)).against(perOne(before.cpu, count)).ratioAtMost(maxWorkGrowth),
					// The bar is not a ratio, because a kind of event may cause no request at all.
					value(event.name+": requests", "", each(p)).against(each(before)).atMost(maxRequestsGrowth*each(before)),
				)
			}
			first[event.name] = p
		}
	}
	s.print(t)
	return nil
}

// relabelSome changes a label of Clusters all over the namespace.
func (s *session) relabelSome(ctx context.Context, p *phase, g *generator, count int) error {
	after := map[client.ObjectKey]time.Time{}
	for i := range count {
		after[g.key(i*g.next/count)] = p.start
	}
	if err := pace(ctx, eventsPerSecond, 0, count, func(ctx context.Context, i int) error {
		return g.label(ctx, clusterFile, i*g.next/count, clusterLabel, fmt.Sprintf("at-%d", g.next))
	}); err != nil {
		return err
	}
	return p.written(ctx, after)
}

// createSome creates Clusters, and initializes their control planes when all exist.
func (s *session) createSome(ctx context.Context, p *phase, g *generator, count int) error {
	from, to := comeAndGo(g, count)
	if err := pace(ctx, eventsPerSecond, from, to, func(ctx context.Context, i int) error {
		return g.create(ctx, i, i+1, allFiles...)
	}); err != nil {
		return err
	}
	if err := p.quiet(ctx); err != nil {
		return err
	}
	if err := pace(ctx, eventsPerSecond, from, to, g.initialize); err != nil {
		return err
	}
	return p.written(ctx, g.keys(from, to, p.start))
}

// comeAndGo returns numbers of Clusters that no other Cluster has or had.
func comeAndGo(g *generator, count int) (from, to int) { return 100 * g.next, 100*g.next + count }

// deleteSome deletes these Clusters and then the objects that they refer to, and waits until the garbage collector
// has deleted their Fleet Clusters.
func (s *session) deleteSome(ctx context.Context, _ *phase, g *generator, count int) error {
	from, to := comeAndGo(g, count)
	if err := pace(ctx, eventsPerSecond, from, to, func(ctx context.Context, i int) error {
		for _, file := range []string{clusterFile, controlPlaneFile, infrastructureFile} {
			if err := s.admin.Delete(ctx, g.object(file, i)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		for i := from; i < to; i++ {
			if err := s.admin.Get(ctx, g.key(i), &fleetv1.Cluster{}); !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		return true, nil
	})
}
