package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/test/oracle"
)

// playedFleet does what Fleet and its agents do with Bundles for HelmChartProxies, as far as
// muster-charts looks at it: it takes Bundles over, and deploys to each target at once.
type playedFleet struct {
	admin client.Client
	cache cache.Cache
	// deployed are the BundleDeployments as they were last written, values the versions of the values that they have.
	deployed map[client.ObjectKey]*fleetv1.BundleDeployment
	values   map[client.ObjectKey]string
}

// playFleet plays Fleet until ctx ends.
func playFleet(ctx context.Context, s *session) error {
	config, err := s.env.RESTConfig()
	if err != nil {
		return err
	}
	ours, err := labels.Parse(plan.ProxyLabel)
	if err != nil {
		return err
	}
	made := cache.ByObject{Label: ours}
	f := &playedFleet{admin: s.admin, deployed: map[client.ObjectKey]*fleetv1.BundleDeployment{}, values: map[client.ObjectKey]string{}}
	f.cache, err = cache.New(config, cache.Options{Scheme: s.admin.Scheme(), ByObject: map[client.Object]cache.ByObject{&fleetv1.Bundle{}: made, &corev1.ConfigMap{}: made}})
	if err != nil {
		return err
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
	return nil
}

// act takes Bundles over, and deploys them.
func (f *playedFleet) act(ctx context.Context) error {
	var bundles fleetv1.BundleList
	if err := f.cache.List(ctx, &bundles); err != nil {
		return err
	}
	var errs []error
	for i := range bundles.Items {
		bundle := &bundles.Items[i]
		if bundle.Status.ObservedGeneration != bundle.Generation {
			before := bundle.DeepCopy()
			bundle.Status.ObservedGeneration = bundle.Generation
			errs = append(errs, client.IgnoreNotFound(f.admin.Status().Patch(ctx, bundle, client.MergeFrom(before))))
		}
		for _, target := range bundle.Spec.Targets {
			errs = append(errs, f.deploy(ctx, bundle, &target))
		}
	}
	return errors.Join(errs...)
}

// deploy deploys to one target. What is there stays, and changes when the values do.
func (f *playedFleet) deploy(ctx context.Context, bundle *fleetv1.Bundle, target *fleetv1.BundleTarget) error {
	values := &corev1.ConfigMap{}
	if err := f.cache.Get(ctx, client.ObjectKey{Namespace: bundle.Namespace, Name: target.DownstreamResources[0].Name}, values); err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: oracle.FleetNamespace(client.ObjectKey{Namespace: bundle.Namespace, Name: target.ClusterName}), Name: bundle.Name}
	its := f.deployed[key]
	switch {
	case its == nil:
		its = &fleetv1.BundleDeployment{}
		its.Namespace, its.Name, its.Labels = key.Namespace, key.Name, maps.Clone(bundle.Labels)
		its.Labels[fleetv1.BundleLabel], its.Labels[fleetv1.BundleNamespaceLabel] = bundle.Name, bundle.Namespace
		its.Labels[fleetv1.ClusterLabel], its.Labels[fleetv1.ClusterNamespaceLabel] = target.ClusterName, bundle.Namespace
		its.Spec.DeploymentID, its.Spec.StagedDeploymentID, its.Spec.DownstreamResourcesGeneration = "s-1:1", "s-1:1", 1
		if err := f.admin.Create(ctx, its); err != nil {
			return fmt.Errorf("deploying: %w", err)
		}
	case f.values[key] != values.ResourceVersion:
		old := its.DeepCopy()
		its.Spec.DownstreamResourcesGeneration++
		if err := f.admin.Patch(ctx, its, client.MergeFrom(old)); err != nil {
			return err
		}
	default:
		return nil
	}
	f.deployed[key], f.values[key] = its, values.ResourceVersion
	old := its.DeepCopy()
	its.Status.AppliedDeploymentID, its.Status.DownstreamResourcesGeneration = its.Spec.DeploymentID, its.Spec.DownstreamResourcesGeneration
	its.Status.Ready, its.Status.NonModified, its.Status.Release = true, true, fmt.Sprintf("default/%s:%d", bundle.Name, its.Spec.DownstreamResourcesGeneration)
	return f.admin.Status().Patch(ctx, its, client.MergeFrom(old))
}
