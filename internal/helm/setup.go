// Package helm is the program that deploys HelmChartProxies with Fleet. It is a separate program, because it
// follows URLs and reads Secrets that users name. This package wires the controllers: package proxy turns
// HelmChartProxies into HelmReleaseProxies, package release turns these into values and statuses, and package
// bundle turns both kinds into Bundles.
package helm

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/bundle"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/release"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/helm/worker"
	"github.com/muster-fleet/muster/internal/kube"
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
	// ChartInterval is how long the program keeps the version that it has found for a range.
	ChartInterval time.Duration
	// DeniedNetworks are the networks to which the program makes no connection for a chart.
	DeniedNetworks []net.IPNet
	// MaxIndex and MaxArchive limit the bytes of an index and of a chart archive.
	MaxIndex, MaxArchive int64
	// SyncPeriod is how often the program reconciles all objects without an event.
	SyncPeriod *time.Duration
}

// AddTo adds the options as flags.
func (o *Options) AddTo(fs *pflag.FlagSet) {
	fs.StringVar(&o.WatchFilter, "watch-filter", "", "Watch only HelmChartProxies whose label cluster.x-k8s.io/watch-filter has this value; all if empty.")
	fs.IntVar(&o.Concurrency, "helmchartproxy-concurrency", 4, "The number of HelmChartProxies, HelmReleaseProxies and Bundles to reconcile at once, each.")
	fs.DurationVar(&o.ChartInterval, "chart-interval", 10*time.Minute, "How often to ask a repository which version of a chart a range, or no version, stands for.")
	fs.IPNetSliceVar(&o.DeniedNetworks, "denied-networks", repository.DeniedNetworks(), "Networks to which the program makes no connection for a chart, whatever name or redirect leads there. Behind a proxy, the proxy must deny them: the program connects only to the proxy then.")
	fs.Int64Var(&o.MaxIndex, "max-index-bytes", 50<<20, "The size of the largest index of a repository, in bytes.")
	fs.Int64Var(&o.MaxArchive, "max-chart-bytes", 50<<20, "The size of the largest chart archive, in bytes.")
}

// Cache returns the options of the cache, which holds only the objects and fields that this program reads.
func (o *Options) Cache() cache.Options {
	ours, err := labels.NewRequirement(plan.ProxyLabel, selection.Exists, nil)
	if err != nil { // It is a constant.
		panic(err)
	}
	made := cache.ByObject{Label: labels.NewSelector().Add(*ours), Transform: store.Trim}
	return cache.Options{
		SyncPeriod:       o.SyncPeriod,
		ByObject:         map[client.Object]cache.ByObject{&corev1.ConfigMap{}: made, &fleetv1.Bundle{}: made, &fleetv1.BundleDeployment{}: made},
		DefaultTransform: kube.Trim,
	}
}

// everywhere runs a Runnable in every replica, so that a standby's caches are warm.
type everywhere struct{ manager.Runnable }

func (everywhere) NeedLeaderElection() bool { return false }

// Setup adds the program to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	for _, index := range []struct {
		of     client.Object
		name   string
		values client.IndexerFunc
	}{
		{&clusterv1.Cluster{}, references.ByReference, references.References}, {&clusterv1.Cluster{}, references.ByKind, references.Kinds},
		{&addonsv1.HelmReleaseProxy{}, proxy.ByProxy, proxy.Index}, {&addonsv1.HelmReleaseProxy{}, bundle.ByBundle, bundle.Index}, {&addonsv1.HelmReleaseProxy{}, byCluster, clusterIndex},
		{&addonsv1.HelmReleaseProxy{}, release.ByTarget, release.TargetIndex},
	} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, index.of, index.name, index.values); err != nil {
			return fmt.Errorf("adding index %s: %w", index.name, err)
		}
	}
	// The objects that Clusters refer to have their own cache: a kind that cannot be listed must not block the
	// others.
	objects, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		SyncPeriod: options.SyncPeriod, DefaultTransform: kube.Trim,
	})
	if err != nil {
		return fmt.Errorf("creating a cache: %w", err)
	}
	if err := mgr.Add(everywhere{objects}); err != nil {
		return err
	}
	e := &enqueuer{mgr.GetClient()}
	referred := references.NewReader(mgr.GetClient(), objects, handler.EnqueueRequestsFromMapFunc(e.ofReferred))
	if err := mgr.Add(referred); err != nil {
		return err
	}
	namespace := os.Getenv("POD_NAMESPACE")
	pool := worker.New(worker.DefaultSize)
	writes := store.New(mgr.GetClient(), mgr.GetAPIReader(), namespace)
	read, wakeReleases, wakeBundles := make(chan event.GenericEvent, 1), make(chan event.GenericEvent, 1), make(chan event.GenericEvent, 1)
	reader := &inputs.Reader{
		Wake: func(key plan.Key) { read <- eventOf(key) },
		Live: mgr.GetAPIReader(), Cached: mgr.GetClient(), Check: pool.Check, Digest: writes.Digest, Namespace: namespace,
		ChartInterval: options.ChartInterval, Now: time.Now,
		Charts: repository.New(repository.Options{
			Interval: options.ChartInterval, DeniedNetworks: options.DeniedNetworks, MaxIndex: options.MaxIndex, MaxArchive: options.MaxArchive,
			Pool: pool, UserAgent: "muster-helm",
		}),
	}
	failures := &proxy.Failures{}
	managed := &proxy.Managed{Reader: mgr.GetClient(), WatchFilter: options.WatchFilter}
	recorder := mgr.GetEventRecorder("muster-helm")
	if err := ctrlmetrics.Registry.Register(newCollector(mgr.GetClient(), reader, mgr.Elected())); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}

	if err := setupProxies(mgr, options, e, read, &proxy.Reconciler{
		Store: writes, Inputs: reader, Managed: managed, Failures: failures, Recorder: recorder, Now: time.Now,
		Wake: func(key plan.Key) {
			wakeReleases <- eventOf(key)
			wakeBundles <- eventOf(key)
		},
	}); err != nil {
		return err
	}
	if err := setupReleases(mgr, options, e, referred, wakeReleases, &release.Reconciler{
		Turns: release.NewTurns(max(1, options.Concurrency/2)),
		Store: writes, Inputs: reader, Managed: managed, Settings: settings.NewReader(mgr.GetClient()), Sources: referred, Renderer: pool,
		Recorder: recorder, Now: time.Now,
	}); err != nil {
		return err
	}
	return setupBundles(mgr, options, e, wakeBundles, &bundle.Reconciler{
		Store: writes, Inputs: reader, Managed: managed, Failures: failures, Wake: reader.Wake,
	})
}

// eventOf returns an event for a HelmChartProxy.
func eventOf(key plan.Key) event.GenericEvent {
	its := &addonsv1.HelmChartProxy{}
	its.Namespace, its.Name = key.Namespace, key.Name
	return event.GenericEvent{Object: its}
}

func (o *Options) controller() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: o.Concurrency,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, time.Minute),
	}
}

// reshaped drops updates of annotations and of the status.
var reshaped = predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, finalizersChanged)

var changed = predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}, finalizersChanged)

// setupProxies adds the controller of HelmChartProxies. Changes of a HelmChartProxy and of its selected
// Clusters enqueue it at once. Changes of its releases enqueue it after a pause, so that one reconcile handles
// many.
func setupProxies(mgr ctrl.Manager, options Options, e *enqueuer, read chan event.GenericEvent, r *proxy.Reconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("helmchartproxy").WithOptions(options.controller()).
		For(&addonsv1.HelmChartProxy{}, builder.WithPredicates(changed)).
		WatchesRawSource(source.Channel(read, &handler.EnqueueRequestForObject{})).
		Watches(&addonsv1.HelmReleaseProxy{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &addonsv1.HelmChartProxy{}), builder.WithPredicates(reshaped)).
		Watches(&addonsv1.HelmReleaseProxy{}, later(releasePause, ownerOf), builder.WithPredicates(rest)).
		Watches(&addonsv1.HelmChartProxy{}, later(releasePause, itself), builder.WithPredicates(statusChanged)).
		Watches(&fleetv1.Bundle{}, later(releasePause, e.proxiesOf), builder.WithPredicates(observedByFleet)).
		Watches(&clusterv1.Cluster{}, e.membership()).
		Watches(&addonsv1.FleetAddonConfig{}, handler.EnqueueRequestsFromMapFunc(e.proxies), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(proxy.NamespaceMetadata(), handler.EnqueueRequestsFromMapFunc(e.proxies), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesMetadata(references.CRD(), handler.EnqueueRequestsFromMapFunc(e.proxies), builder.WithPredicates(predicate.NewPredicateFuncs(isProxyCRD), references.ContractNews)).
		Complete(r)
}

// setupReleases adds the controller of HelmReleaseProxies. An event enqueues only the releases that it
// concerns.
func setupReleases(mgr ctrl.Manager, options Options, e *enqueuer, referred *references.Reader, wake chan event.GenericEvent, r *release.Reconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("helmreleaseproxy").WithOptions(options.controller()).
		For(&addonsv1.HelmReleaseProxy{}).
		Watches(&addonsv1.HelmChartProxy{}, handler.EnqueueRequestsFromMapFunc(e.releases), builder.WithPredicates(changed)).
		WatchesRawSource(source.Channel(wake, handler.EnqueueRequestsFromMapFunc(e.releases))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(e.ofCluster)).
		Watches(&fleetv1.BundleDeployment{}, handler.EnqueueRequestsFromMapFunc(e.ofDeployment)).
		Watches(&fleetv1.Bundle{}, handler.EnqueueRequestsFromMapFunc(e.ofBundle), builder.WithPredicates(comesOrGoes)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(ofValues)).
		Watches(&addonsv1.FleetAddonConfig{}, handler.EnqueueRequestsFromMapFunc(e.releases), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(store.FleetClusterMetadata(), handler.EnqueueRequestsFromMapFunc(e.ofFleetCluster), builder.WithPredicates(predicate.Or[client.Object](
			predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}, ownersChanged))).
		WatchesMetadata(references.CRD(), handler.EnqueueRequestsFromMapFunc(e.ofKind), builder.WithPredicates(references.ContractNews)).
		WatchesRawSource(referred.Source()).
		WatchesRawSource(warm{referred}).
		Complete(r)
}

// setupBundles adds the controller of Bundles. Changes of releases enqueue a Bundle after a pause, so that one
// write handles many.
func setupBundles(mgr ctrl.Manager, options Options, e *enqueuer, wake chan event.GenericEvent, r *bundle.Reconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("helmbundle").WithOptions(options.controller()).
		For(&fleetv1.Bundle{}, builder.WithPredicates(predicate.Or[client.Object](changed, deleted))).
		WatchesRawSource(source.Channel(wake, handler.EnqueueRequestsFromMapFunc(e.bundles))).
		Watches(&addonsv1.HelmReleaseProxy{}, later(bundlePause, bundleOf), builder.WithPredicates(changed)).
		Watches(&addonsv1.HelmChartProxy{}, handler.EnqueueRequestsFromMapFunc(e.bundles), builder.WithPredicates(changed)).
		WatchesMetadata(store.FleetClusterMetadata(), handler.EnqueueRequestsFromMapFunc(e.bundlesOfFleetCluster), builder.WithPredicates(predicate.Or[client.Object](
			predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}, ownersChanged))).
		Complete(r)
}

func isProxyCRD(crd client.Object) bool { return crd.GetName() == proxy.CRDName }

// warm delays the controller until the objects that Clusters refer to are listed, but not for long. Otherwise,
// after each start, every release would first report that they are being listed.
type warm struct{ *references.Reader }

var _ source.SyncingSource = warm{}

// Start does nothing; only WaitForSync matters.
func (warm) Start(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	return nil
}

// WaitForSync waits for the lists.
func (w warm) WaitForSync(ctx context.Context) error {
	return w.Warm(ctx, func(client.Object) bool { return true })
}

// byCluster is the index of HelmReleaseProxies by their Cluster.
const byCluster = "cluster"

func clusterIndex(object client.Object) []string {
	of := object.(*addonsv1.HelmReleaseProxy).Spec.ClusterRef
	return []string{of.Namespace + "/" + of.Name}
}
