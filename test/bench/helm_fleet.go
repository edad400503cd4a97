package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/test/oracle"
)

// playedFleet plays Fleet and its agents for Bundles of HelmChartProxies, to the extent that muster-helm reacts: it
// takes Bundles over, and deploys to each target at once.
type playedFleet struct {
	admin client.Client
	cache cache.Cache
	// deployed contains the BundleDeployments as last written.
	deployed sync.Map
	revision atomic.Int64
	// isAway means that Fleet does nothing.
	isAway atomic.Bool

	mu sync.Mutex
	// changes are the times at which a Cluster got different content.
	changes []time.Time
}

// since returns the times after begin at which a Cluster got different content.
func (f *playedFleet) since(begin time.Time) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.changes), func(at time.Time) bool { return at.Before(begin) })
}

// playFleet plays Fleet until ctx ends.
func playFleet(ctx context.Context, s *session) (*playedFleet, error) {
	config, err := s.env.RESTConfig()
	if err != nil {
		return nil, err
	}
	ours, err := labels.Parse(plan.ProxyLabel)
	if err != nil {
		return nil, err
	}
	made := cache.ByObject{Label: ours}
	f := &playedFleet{admin: s.admin}
	f.cache, err = cache.New(config, cache.Options{Scheme: s.admin.Scheme(), ByObject: map[client.Object]cache.ByObject{&fleetv1.Bundle{}: made}})
	if err != nil {
		return nil, err
	}
	go func() { _ = f.cache.Start(ctx) }()
	go func() {
		for ctx.Err() == nil {
			if err := f.act(ctx); err != nil && ctx.Err() == nil {
				s.say("playing Fleet: %v", err)
			}
			_ = sleep(ctx, 200*time.Millisecond)
		}
	}()
	return f, nil
}

// act takes Bundles over, and deploys them.
func (f *playedFleet) act(ctx context.Context) error {
	if f.isAway.Load() {
		return nil
	}
	var bundles fleetv1.BundleList
	if err := f.cache.List(ctx, &bundles); err != nil {
		return err
	}
	var group errgroup.Group // Otherwise Fleet would be slower than muster-helm.
	group.SetLimit(requestsAtOnce)
	for i := range bundles.Items {
		bundle := &bundles.Items[i]
		if bundle.Status.ObservedGeneration != bundle.Generation {
			group.Go(func() error {
				taken := bundle.DeepCopy()
				taken.Status.ObservedGeneration = bundle.Generation
				return client.IgnoreNotFound(f.admin.Status().Patch(ctx, taken, client.MergeFrom(bundle)))
			})
		}
		for _, target := range bundle.Spec.Targets {
			group.Go(func() error { return f.deploy(ctx, bundle, &target) })
		}
	}
	return group.Wait()
}

// deploy deploys to one target, and again when its content or its values change.
func (f *playedFleet) deploy(ctx context.Context, bundle *fleetv1.Bundle, target *fleetv1.BundleTarget) error {
	key := client.ObjectKey{Namespace: oracle.FleetNamespace(client.ObjectKey{Namespace: bundle.Namespace, Name: target.ClusterName}), Name: bundle.Name}
	id := fmt.Sprintf("s-%s:%s", bundle.Labels[plan.ContentLabel], target.DownstreamResources[0].Name)
	its := &fleetv1.BundleDeployment{}
	known, isKnown := f.deployed.Load(key)
	if isKnown {
		its = known.(*fleetv1.BundleDeployment)
	}
	switch {
	case !isKnown:
		its.Namespace, its.Name = key.Namespace, key.Name
		f.fill(its, bundle, target, id)
		if err := f.admin.Create(ctx, its); err != nil {
			return fmt.Errorf("deploying: %w", err)
		}
	case its.Spec.DeploymentID != id:
		f.mu.Lock()
		f.changes = append(f.changes, time.Now())
		f.mu.Unlock()
		old := its.DeepCopy()
		f.fill(its, bundle, target, id)
		if err := f.admin.Patch(ctx, its, client.MergeFrom(old)); err != nil {
			return err
		}
	default:
		return nil
	}
	f.deployed.Store(key, its)
	old := its.DeepCopy()
	its.Status.AppliedDeploymentID, its.Status.DownstreamResourcesGeneration = its.Spec.DeploymentID, its.Spec.DownstreamResourcesGeneration
	its.Status.Ready, its.Status.NonModified, its.Status.Release = true, true, fmt.Sprintf("default/%s:%d", bundle.Name, f.revision.Add(1))
	return f.admin.Status().Patch(ctx, its, client.MergeFrom(old))
}

func (f *playedFleet) fill(its *fleetv1.BundleDeployment, bundle *fleetv1.Bundle, target *fleetv1.BundleTarget, id string) {
	its.Labels = maps.Clone(bundle.Labels)
	its.Labels[fleetv1.BundleLabel], its.Labels[fleetv1.BundleNamespaceLabel] = bundle.Name, bundle.Namespace
	its.Labels[fleetv1.ClusterLabel], its.Labels[fleetv1.ClusterNamespaceLabel] = target.ClusterName, bundle.Namespace
	its.Spec.DeploymentID, its.Spec.StagedDeploymentID, its.Spec.DownstreamResourcesGeneration = id, id, 1
	its.Spec.Options.DownstreamResources = target.DownstreamResources
}
