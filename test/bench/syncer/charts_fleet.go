package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/test/oracle"
)

// playedFleet does what Fleet and its agents do with what is made for HelmChartProxies, as far as
// muster-charts looks at it: it takes Bundles over, and deploys to each target at once.
type playedFleet struct {
	admin client.Client
	cache cache.Cache
	news  chan struct{}

	mu sync.Mutex
	// values are the versions of the values that a Fleet Cluster has, by the name of the object.
	values map[client.ObjectKey]string
	failed error
}

// playFleetFor plays Fleet until the end.
func (s *session) playFleetFor(ctx context.Context) (*playedFleet, error) {
	config, err := s.env.RESTConfig()
	if err != nil {
		return nil, err
	}
	ours, err := labels.NewRequirement(plan.ProxyLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	made := cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	f := &playedFleet{admin: s.admin, news: make(chan struct{}, 1), values: map[client.ObjectKey]string{}}
	kinds := []client.Object{&fleetv1.HelmOp{}, &fleetv1.Bundle{}, &corev1.ConfigMap{}, &fleetv1.BundleDeployment{}}
	options := cache.Options{Scheme: s.admin.Scheme(), ByObject: map[client.Object]cache.ByObject{}}
	for _, kind := range kinds {
		options.ByObject[kind] = made
	}
	if f.cache, err = cache.New(config, options); err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		informer, err := f.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { f.wake() }, UpdateFunc: func(_, _ any) { f.wake() }, DeleteFunc: func(any) { f.wake() },
		}); err != nil {
			return nil, err
		}
	}
	go func() { _ = f.cache.Start(ctx) }()
	if !f.cache.WaitForCacheSync(ctx) {
		return nil, errors.New("the cache of the played Fleet is not filled")
	}
	go f.run(ctx)
	return f, nil
}

func (f *playedFleet) wake() {
	select {
	case f.news <- struct{}{}:
	default: // It is awake.
	}
}

func (f *playedFleet) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.news:
		}
		err := f.act(ctx)
		if err != nil {
			time.AfterFunc(time.Second, f.wake)
		}
		f.mu.Lock()
		f.failed = err
		f.mu.Unlock()
	}
}

// trouble is what keeps Fleet from being played.
func (f *playedFleet) trouble() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// act makes of what there is what Fleet would.
func (f *playedFleet) act(ctx context.Context) error {
	var ops fleetv1.HelmOpList
	if err := f.cache.List(ctx, &ops); err != nil {
		return err
	}
	for i := range ops.Items {
		if err := f.follow(ctx, &ops.Items[i]); err != nil {
			return fmt.Errorf("following a HelmOp: %w", err)
		}
	}
	var bundles fleetv1.BundleList
	if err := f.cache.List(ctx, &bundles); err != nil {
		return err
	}
	var errs []error
	for i := range bundles.Items {
		errs = append(errs, f.take(ctx, &bundles.Items[i]))
	}
	return errors.Join(errs...)
}

// follow makes of a HelmOp the Bundle that Fleet makes of it.
func (f *playedFleet) follow(ctx context.Context, op *fleetv1.HelmOp) error {
	bundle := &fleetv1.Bundle{}
	bundle.Namespace, bundle.Name = op.Namespace, op.Name
	_, err := controllerutil.CreateOrPatch(ctx, f.admin, bundle, func() error {
		if bundle.Labels == nil {
			bundle.Labels = map[string]string{}
		}
		maps.Copy(bundle.Labels, op.Spec.Labels)
		bundle.Labels[fleetv1.HelmOpLabel] = op.Name
		bundle.Spec = *plan.MadeOf(op)
		return nil
	})
	return err
}

// take takes a Bundle over.
func (f *playedFleet) take(ctx context.Context, bundle *fleetv1.Bundle) error {
	if bundle.Status.ObservedGeneration != bundle.Generation {
		before := bundle.DeepCopy()
		bundle.Status.ObservedGeneration = bundle.Generation
		if err := f.admin.Status().Patch(ctx, bundle, client.MergeFrom(before)); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	var errs []error
	for _, target := range bundle.Spec.Targets {
		errs = append(errs, f.deploy(ctx, bundle, &target))
	}
	return errors.Join(errs...)
}

// deploy deploys to one target. What is there stays, and changes when the values do.
func (f *playedFleet) deploy(ctx context.Context, bundle *fleetv1.Bundle, target *fleetv1.BundleTarget) error {
	version, err := f.versionOfValues(ctx, bundle.Namespace, target)
	if err != nil {
		return err
	}
	its := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: oracle.FleetNamespace(client.ObjectKey{Namespace: bundle.Namespace, Name: target.ClusterName}), Name: bundle.Name,
		Labels: maps.Clone(bundle.Labels),
	}}
	key := client.ObjectKeyFromObject(its)
	before, known := f.values[key]
	if known && before == version {
		return nil
	}
	if known {
		if err := f.cache.Get(ctx, key, its); err != nil {
			return err
		}
		old := its.DeepCopy()
		its.Spec.DownstreamResourcesGeneration++
		if err := f.admin.Patch(ctx, its, client.MergeFrom(old)); err != nil {
			return err
		}
	} else {
		its.Labels[fleetv1.BundleLabel], its.Labels[fleetv1.BundleNamespaceLabel] = bundle.Name, bundle.Namespace
		its.Labels[fleetv1.ClusterLabel], its.Labels[fleetv1.ClusterNamespaceLabel] = target.ClusterName, bundle.Namespace
		its.Spec.DeploymentID, its.Spec.StagedDeploymentID, its.Spec.DownstreamResourcesGeneration = "s-1:1", "s-1:1", 1
		if err := f.admin.Create(ctx, its); apierrors.IsAlreadyExists(err) {
			err = f.admin.Get(ctx, key, its)
			if err != nil {
				return err
			}
		} else if err != nil {
			return fmt.Errorf("deploying: %w", err)
		}
	}
	old := its.DeepCopy()
	its.Status.AppliedDeploymentID, its.Status.DownstreamResourcesGeneration = its.Spec.DeploymentID, its.Spec.DownstreamResourcesGeneration
	its.Status.Ready, its.Status.NonModified, its.Status.Release = true, true, fmt.Sprintf("default/%s:%d", bundle.Name, its.Spec.DownstreamResourcesGeneration)
	if err := f.admin.Status().Patch(ctx, its, client.MergeFrom(old)); err != nil {
		return err
	}
	f.values[key] = version
	return nil
}

// versionOfValues returns the version of the values that a target names.
func (f *playedFleet) versionOfValues(ctx context.Context, namespace string, target *fleetv1.BundleTarget) (string, error) {
	if len(target.DownstreamResources) == 0 {
		return "", nil
	}
	values := &corev1.ConfigMap{}
	err := f.cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: target.DownstreamResources[0].Name}, values)
	return values.ResourceVersion, err
}
