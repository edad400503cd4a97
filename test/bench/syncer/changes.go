package main

import (
	"context"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// Labels that change, of a Cluster, of a class and of a control plane.
const (
	clusterLabel      = "bench.example.com/cluster"
	classLabel        = "bench.example.com/class"
	controlPlaneLabel = "bench.example.com/control-plane"
)

// eventsPerSecond is how many Clusters are changed, created or deleted where not the time
// of each is measured.
const eventsPerSecond = 20

func labelPatch(key string, n int) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"at-%d"}}}`, key, n))
}

// changed is what single Clusters' changes cost.
type changed struct {
	count    int
	requests requests
	cpu      time.Duration
	latency  latencies
}

// measureChanges changes a label of some Clusters, one after the other.
func (s *session) measureChanges(ctx context.Context, g *load.Generator, n int) (c changed, err error) {
	p, err := s.followSyncer()
	if err != nil {
		return c, err
	}
	c.count = min(n, 20)
	if err := load.Pace(ctx, 10, 0, c.count, func(ctx context.Context, i int) error {
		object, err := g.Object(load.ClusterFile, i*n/c.count)
		if err != nil {
			return err
		}
		return s.admin.Patch(ctx, object, labelPatch(clusterLabel, n))
	}); err != nil {
		return c, err
	}
	after := map[client.ObjectKey]time.Time{}
	for i := range c.count {
		after[g.Key(i*n/c.count)] = p.start
	}
	if c.latency, err = p.latencies(ctx, after); err != nil {
		return c, err
	}
	if err := p.quiet(ctx); err != nil {
		return c, err
	}
	c.requests = p.requests
	c.cpu, err = p.work()
	return c, err
}

// relabelClasses changes a label of every class at once, which every Fleet Cluster carries.
func (s *session) relabelClasses(ctx context.Context, g *load.Generator) error {
	s.labelled++
	for i := range g.Classes {
		class := &clusterv1.ClusterClass{}
		class.Namespace, class.Name = load.ClassNamespace, fmt.Sprintf("class-%d", i)
		if err := s.admin.Patch(ctx, class, labelPatch(classLabel, s.labelled)); err != nil {
			return err
		}
	}
	return nil
}

// measureFanOut measures a change that every Fleet Cluster needs.
func (s *session) measureFanOut(ctx context.Context, g *load.Generator, n int) (b burst, err error) {
	p, err := s.followSyncer()
	if err != nil {
		return b, err
	}
	if err := s.relabelClasses(ctx, g); err != nil {
		return b, err
	}
	keys := keysAt(g, 0, n, p.start)
	if err := p.written(ctx, keys); err != nil {
		return b, err
	}
	if err := p.quiet(ctx); err != nil {
		return b, err
	}
	b = burst{count: len(keys), elapsed: p.requests.lastWrite().Sub(p.start), requests: p.requests}
	b.cpu, err = p.work()
	return b, err
}

// measureValues changes control planes at a rate, and checks that the Fleet Clusters'
// template values have the last change.
func (s *session) measureValues(ctx context.Context, g *load.Generator, n int) (latencies, error) {
	const perSecond = 25
	count := min(n, 250)
	p, err := s.followSyncer()
	if err != nil {
		return nil, err
	}
	if err := load.Pace(ctx, perSecond, 0, count, func(ctx context.Context, i int) error {
		object, err := g.Object(load.ControlPlaneFile, i*n/count)
		if err != nil {
			return err
		}
		return s.admin.Patch(ctx, object, labelPatch(controlPlaneLabel, n))
	}); err != nil {
		return nil, err
	}
	after := map[client.ObjectKey]time.Time{}
	for i := range count {
		after[g.Key(i*n/count)] = p.start
	}
	result, err := p.latencies(ctx, after)
	if err != nil {
		return nil, err
	}
	for key := range after {
		var imported fleetv1.Cluster
		if err := s.admin.Get(ctx, key, &imported); err != nil {
			return nil, err
		}
		got, _, _ := unstructured.NestedString(imported.Spec.TemplateValues.Data, "ControlPlane", "metadata", "labels", controlPlaneLabel)
		if want := fmt.Sprintf("at-%d", n); got != want {
			return nil, fmt.Errorf("the template values of %s have the change %q, not %q", key, got, want)
		}
	}
	return result, nil
}

// deleteSome deletes Clusters and then what they refer to, and waits until the garbage
// collector has deleted their Fleet Clusters.
func (s *session) deleteSome(ctx context.Context, g *load.Generator, from, to int) error {
	if err := load.Pace(ctx, eventsPerSecond, from, to, func(ctx context.Context, i int) error {
		for _, file := range []string{load.ClusterFile, load.ControlPlaneFile, load.InfrastructureFile} {
			object, err := g.Object(file, i)
			if err != nil {
				return err
			}
			if err := s.admin.Delete(ctx, object); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for i := from; i < to; i++ {
		if err := poll.Until(ctx, "a Fleet Cluster to go with its Cluster", patience, func(ctx context.Context) error {
			err := s.admin.Get(ctx, g.Key(i), &fleetv1.Cluster{})
			if err == nil {
				return fmt.Errorf("%s is still there", g.Key(i))
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func deployment(name types.NamespacedName) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
}
