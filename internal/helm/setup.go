// Package helm is the program that deploys HelmChartProxies with Fleet. It is a separate program, because it
// follows URLs and reads Secrets that users name. This package wires the controllers: package proxy turns
// HelmChartProxies into HelmReleaseProxies, package release turns these into values and statuses, and package
// bundle turns both kinds into Bundles.
package helm

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/bundle"
	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/release"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/helm/worker"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Lease is the name of the Lease for leader election among the replicas.
const Lease = stamp.HelmLease

// Options are the settings of the program.
type Options struct {
	// WatchFilter limits the program to HelmChartProxies whose label cluster.x-k8s.io/watch-filter has this
	// value.
	WatchFilter string
	// Concurrency is the number of objects of each kind that the program reconciles at once.
	Concurrency int
	// Repositories configures the client of chart repositories.
	Repositories repository.Options
	// SyncPeriod is how often the program reconciles all objects without an event.
	SyncPeriod *time.Duration
}

// AddTo adds the options as flags.
func (o *Options) AddTo(fs *pflag.FlagSet) {
	fs.StringVar(&o.WatchFilter, "watch-filter", "", "Watch only HelmChartProxies whose label cluster.x-k8s.io/watch-filter has this value; all if empty.")
	fs.IntVar(&o.Concurrency, "helmchartproxy-concurrency", 4, "How many HelmChartProxies are reconciled at once, and the same number of HelmReleaseProxies and of Bundles.")
	fs.DurationVar(&o.Repositories.Interval, "chart-interval", 10*time.Minute, "How often to ask a repository for the newest version of a chart, for a range or if no version is set.")
	fs.IPNetSliceVar(&o.Repositories.DeniedNetworks, "denied-networks", repository.DeniedNetworks(), "Networks to which the program makes no connection for a chart, whatever name or redirect leads there. If the program uses an HTTP proxy, the proxy must deny these networks.")
	fs.Int64Var(&o.Repositories.MaxIndex, "max-index-bytes", 50<<20, "The maximum size of a repository's index, in bytes.")
	fs.Int64Var(&o.Repositories.MaxArchive, "max-chart-bytes", 50<<20, "The maximum size of a chart's archive, in bytes.")
}

// Cache returns the options of the cache, which holds only the objects and fields that this program reads.
func (o *Options) Cache() cache.Options {
	ours, err := labels.Parse(plan.ProxyLabel)
	utilruntime.Must(err) // It is a constant.
	made := cache.ByObject{Label: ours, Transform: store.Trim}
	return cache.Options{
		SyncPeriod: o.SyncPeriod,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: made, &fleetv1.Bundle{}: made, &fleetv1.BundleDeployment{}: made, &addonsv1.HelmReleaseProxy{}: {Transform: store.Trim},
		},
		DefaultTransform: kube.Trim,
	}
}

// Setup adds the program to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	indexes := map[string]client.IndexerFunc{proxy.ByProxy: proxy.Index, bundle.ByBundle: bundle.Index, proxy.ByCluster: proxy.ClusterIndex, proxy.ByRelease: proxy.AskedIndex, release.ByTarget: release.TargetIndex}
	clusters := map[string]client.IndexerFunc{references.ByReference: references.References, references.ByKind: references.Kinds}
	bundles := map[string]client.IndexerFunc{proxy.ByRelease: proxy.ReleaseIndex}
	for of, its := range map[client.Object]map[string]client.IndexerFunc{&addonsv1.HelmReleaseProxy{}: indexes, &clusterv1.Cluster{}: clusters, &fleetv1.Bundle{}: bundles} {
		for name, values := range its {
			if err := mgr.GetFieldIndexer().IndexField(ctx, of, name, values); err != nil {
				return fmt.Errorf("adding index %s: %w", name, err)
			}
		}
	}
	e := &enqueuer{mgr.GetClient()}
	objects := kinds.CachesOf(mgr, cache.Options{SyncPeriod: options.SyncPeriod, DefaultTransform: kube.Trim})
	referred := references.NewReader(ctx, mgr.GetClient(), mgr.GetRESTMapper(), objects, mapped(e.ofReferred), mapped(e.ofKind))
	policyReader := &policies.Reader{CRDs: mgr.GetClient(), NewCache: kinds.CachesOf(mgr, policies.CacheOptions()), News: e.ofPolicy, Now: time.Now}
	namespace := os.Getenv("POD_NAMESPACE")
	pool := worker.New(worker.DefaultSize)
	options.Repositories.Pool, options.Repositories.UserAgent = pool, "muster-helm"
	recorder := mgr.GetEventRecorder("muster-helm")
	writes := store.New(mgr.GetClient(), mgr.GetAPIReader(), namespace, clock.RealClock{})
	writes.Recorder = recorder
	read, wakeReleases, wakeBundles, turns := make(chan event.GenericEvent, 1), make(chan event.GenericEvent, 1), make(chan event.GenericEvent, 1), make(chan event.GenericEvent, 1)
	reader := &inputs.Reader{
		Wake: func(key plan.Key, isNews bool) {
			send(ctx, read, key)
			if isNews {
				send(ctx, wakeReleases, key)
				send(ctx, wakeBundles, key)
			}
		},
		Live: mgr.GetAPIReader(), Cached: mgr.GetClient(), Check: pool.Check, Digest: writes.Digest, Namespace: namespace,
		Now: time.Now, Charts: repository.New(options.Repositories),
	}
	failures := &sync.Map{}
	managed := &proxy.Managed{Reader: mgr.GetClient(), Namespace: namespace, WatchFilter: options.WatchFilter}
	if err := registerCounts(mgr.Elected(), mgr.GetClient(), reader); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}

	releases := &release.Reconciler{
		Store: writes, Inputs: reader, Policies: policyReader, Managed: managed, Settings: settings.NewReader(mgr.GetClient()).WithRecord(mgr.GetAPIReader(), nil, namespace), Sources: referred, Renderer: pool,
		Turns:    fair.NewTurns(options.Concurrency, func(key plan.Key) { send(ctx, turns, key) }),
		Recorder: recorder, Now: time.Now,
	}
	if err := setupProxies(mgr, options, e, read, &proxy.Reconciler{
		Store: writes, Inputs: reader, Policies: policyReader, Managed: managed, Failures: failures, Recorder: recorder, Now: time.Now, Knows: releases.Knows,
	}); err != nil {
		return err
	}
	if err := setupReleases(mgr, options, e, referred, wakeReleases, turns, releases); err != nil {
		return err
	}
	return setupBundles(mgr, options, e, wakeBundles, &bundle.Reconciler{
		Store: writes, Inputs: reader, Policies: policyReader, Managed: managed, Failures: failures, Wake: func(key plan.Key) { send(ctx, read, key) },
	})
}

// send sends an event for the HelmChartProxy or HelmReleaseProxy with this key, unless the program ends meanwhile.
func send(ctx context.Context, to chan<- event.GenericEvent, key plan.Key) {
	select {
	case to <- event.GenericEvent{Object: &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}}:
	case <-ctx.Done():
	}
}

func (o *Options) controller() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: o.Concurrency,
		// A policy or webhook that ceases to refuse a write shows no event.
		RateLimiter: kube.RateLimiter(),
	}
}

// setupProxies adds the controller of HelmChartProxies. Changes of a HelmChartProxy enqueue it at once. Changes of
// its Clusters and releases enqueue it after a pause if they follow others, so that one reconcile handles many.
func setupProxies(mgr ctrl.Manager, options Options, e *enqueuer, read chan event.GenericEvent, r *proxy.Reconciler) error {
	collect := later(releasePause)
	byOthers := onUpdate(func(before, after client.Object) bool { return !r.IsOwn(before, after) })
	return ctrl.NewControllerManagedBy(mgr).Named("helmchartproxy").WithOptions(options.controller()).
		For(&addonsv1.HelmChartProxy{}, builder.WithPredicates(changed)).
		WatchesRawSource(source.Channel(read, &handler.EnqueueRequestForObject{})).
		Watches(&addonsv1.HelmReleaseProxy{}, mapped(ownerOf), builder.WithPredicates(reshaped)).
		Watches(&addonsv1.HelmReleaseProxy{}, collect(ownerOf), builder.WithPredicates(predicate.Not[client.Object](reshaped))).
		Watches(&addonsv1.HelmChartProxy{}, collect(itself), builder.WithPredicates(predicate.Not[client.Object](changed), byOthers)).
		Watches(&fleetv1.Bundle{}, collect(e.by(bundle.ByBundle, ownerOf)), builder.WithPredicates(observedByFleet)).
		Watches(&clusterv1.Cluster{}, collect(e.selecting), builder.WithPredicates(changed)).
		WatchesMetadata(proxy.NamespaceMetadata(), mapped(e.proxies), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesMetadata(references.CRD(), mapped(e.proxies), builder.WithPredicates(predicate.NewPredicateFuncs(isProxyCRD), references.ContractNews)).
		Complete(r)
}

// setupReleases adds the controller of HelmReleaseProxies. An event enqueues only the releases that it
// concerns.
func setupReleases(mgr ctrl.Manager, options Options, e *enqueuer, referred *references.Reader, wake, turns chan event.GenericEvent, r *release.Reconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("helmreleaseproxy").WithOptions(options.controller()).
		For(&addonsv1.HelmReleaseProxy{}).
		Watches(&addonsv1.HelmChartProxy{}, mapped(e.of(itself)), builder.WithPredicates(changed)).
		WatchesRawSource(source.Channel(wake, mapped(e.of(itself)))).
		WatchesRawSource(source.Channel(turns, first)).
		Watches(&clusterv1.Cluster{}, mapped(e.by(proxy.ByCluster, itself))).
		Watches(&addonsv1.HelmReleaseProxy{}, mapped(e.othersOfRelease), builder.WithPredicates(claimNews)).
		Watches(&fleetv1.BundleDeployment{}, mapped(e.ofDeployment)).
		Watches(&fleetv1.BundleDeployment{}, mapped(e.waitingForDeployment), builder.WithPredicates(comesOrGoes)).
		Watches(&fleetv1.Bundle{}, e.waitingForTargets()).
		Watches(&fleetv1.Bundle{}, mapped(e.by(bundle.ByBundle, itself)), builder.WithPredicates(comesOrGoes)).
		Watches(&corev1.ConfigMap{}, mapped(ofValues)).
		Watches(&addonsv1.FleetAddonConfig{}, mapped(e.of(itself)), builder.WithPredicates(predicate.NewPredicateFuncs(r.Settings.Saw), predicate.GenerationChangedPredicate{})).
		WatchesMetadata(store.FleetClusterMetadata(), mapped(e.ofFleetCluster), builder.WithPredicates(reimported)).
		WatchesMetadata(references.CRD(), referred.CRDs(), builder.WithPredicates(references.ContractNews)).
		WatchesMetadata(references.CRD(), mapped(e.of(itself)), builder.WithPredicates(policiesCRD)).
		WatchesRawSource(r.Policies.Source()).
		WatchesRawSource(referred.Source()).
		Complete(r)
}

// setupBundles adds the controller of Bundles. Changes of releases enqueue a Bundle after a pause if they follow others, so
// that one write handles many.
func setupBundles(mgr ctrl.Manager, options Options, e *enqueuer, wake chan event.GenericEvent, r *bundle.Reconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("helmbundle").WithOptions(options.controller()).
		For(&fleetv1.Bundle{}, builder.WithPredicates(predicate.Or[client.Object](changed, refusal))).
		WatchesRawSource(source.Channel(wake, mapped(e.of(bundleOf)))).
		Watches(&addonsv1.HelmReleaseProxy{}, later(bundlePause)(bundleOf), builder.WithPredicates(predicate.Or[client.Object](changed, beginsToFail, endsToWait))).
		Watches(&addonsv1.HelmChartProxy{}, mapped(e.bundlesOfProxy), builder.WithPredicates(changed)).
		WatchesMetadata(store.FleetClusterMetadata(), mapped(e.bundlesOfFleetCluster), builder.WithPredicates(reimported)).
		Complete(r)
}

// mapped returns a handler that enqueues the requests for the old and the new object.
var mapped = handler.EnqueueRequestsFromMapFunc

func isProxyCRD(crd client.Object) bool { return crd.GetName() == proxy.CRDName }
