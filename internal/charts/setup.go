package charts

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/fetch"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/observed"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// Lease is by which one of several replicas leads.
const Lease = stamp.ChartsLease

// Options are the settings of the program.
type Options struct {
	// WatchFilter limits it to HelmChartProxies whose label cluster.x-k8s.io/watch-filter has
	// this value; empty for all.
	WatchFilter string
	// Concurrency is how many HelmChartProxies are looked at once.
	Concurrency int
	// ChartInterval is how often is asked which version a range stands for.
	ChartInterval time.Duration
	// DeniedNetworks are those in which no repository is.
	DeniedNetworks []net.IPNet
	// SyncPeriod is how often everything is looked at again without an event.
	SyncPeriod *time.Duration
}

// AddTo adds the options as flags.
func (o *Options) AddTo(fs *pflag.FlagSet) {
	fs.StringVar(&o.WatchFilter, "watch-filter", "", "Watch only HelmChartProxies whose label cluster.x-k8s.io/watch-filter has this value; all if empty.")
	fs.IntVar(&o.Concurrency, "helmchartproxy-concurrency", 4, "How many HelmChartProxies are looked at once.")
	fs.DurationVar(&o.ChartInterval, "chart-interval", 10*time.Minute, "How often a repository is asked which version of a chart a range, or no version, stands for.")
	fs.IPNetSliceVar(&o.DeniedNetworks, "denied-networks", deniedNetworks(), "Networks to which no connection is made for a chart, whatever name or redirect leads there.")
}

// deniedNetworks are those in which clouds hand out credentials to whoever asks, and addresses
// that no repository has.
func deniedNetworks() []net.IPNet {
	var networks []net.IPNet
	for _, network := range []string{"0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::/128", "fd00:ec2::254/128", "fe80::/10", "ff00::/8"} {
		_, parsed, err := net.ParseCIDR(network)
		if err != nil { // They are constants.
			panic(err)
		}
		networks = append(networks, *parsed)
	}
	return networks
}

// Cache returns what is cached, and no more of it than is read here.
func (o *Options) Cache() cache.Options {
	ours, err := labels.NewRequirement(plan.ProxyLabel, selection.Exists, nil)
	if err != nil { // It is a constant.
		panic(err)
	}
	made := cache.ByObject{Label: labels.NewSelector().Add(*ours), Transform: Trim}
	return cache.Options{
		SyncPeriod: o.SyncPeriod,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: made, &fleetv1.Bundle{}: made, &fleetv1.HelmOp{}: made, &fleetv1.BundleDeployment{}: made,
		},
		DefaultTransform: observed.Trim,
	}
}

// everywhere runs a Runnable in every replica, so that a standby's caches are warm.
type everywhere struct{ manager.Runnable }

func (everywhere) NeedLeaderElection() bool { return false }

// Setup adds the program to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	for name, values := range map[string]client.IndexerFunc{sources.ByReference: sources.References, sources.ByKind: sources.Kinds} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Cluster{}, name, values); err != nil {
			return fmt.Errorf("adding index %s: %w", name, err)
		}
	}
	// What Clusters refer to has a cache of its own: a kind that cannot be listed must not
	// hold up the others.
	its := cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		SyncPeriod: options.SyncPeriod, DefaultTransform: observed.Trim,
	}
	objects, err := cache.New(mgr.GetConfig(), its)
	if err != nil {
		return fmt.Errorf("creating a cache: %w", err)
	}
	if err := mgr.Add(everywhere{objects}); err != nil {
		return err
	}
	e := &enqueuer{mgr.GetClient()}
	referred := sources.New(mgr.GetClient(), objects, handler.EnqueueRequestsFromMapFunc(e.ofReferred))
	r := &reconciler{
		Client: mgr.GetClient(), Options: options, live: mgr.GetAPIReader(), settings: settings.NewReader(mgr.GetClient()),
		sources: referred, charts: fetch.New(options.ChartInterval, options.DeniedNetworks...), recorder: mgr.GetEventRecorder("muster-charts"), now: time.Now,
		peer: newPeer(mgr.GetClient()), rendered: newMemory(), versions: newVersions(), large: newLarge(), traces: newTraces(time.Now()), digests: &digests{client: mgr.GetClient(), live: mgr.GetAPIReader(), namespace: os.Getenv("POD_NAMESPACE")}, tally: newTally(), pace: newPace(),
	}
	if err := mgr.Add(referred); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("helmchartproxy").
		WithOptions(controller.Options{
			MaxConcurrentReconciles: options.Concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, time.Minute),
		}).
		For(&addonsv1.HelmChartProxy{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&addonsv1.HelmReleaseProxy{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &addonsv1.HelmChartProxy{}), builder.WithPredicates(notOnlyStatus)).
		// Statuses are ours, but may have been written by comparison with older ones: their watches may lag behind others.
		Watches(&addonsv1.HelmReleaseProxy{}, r.pace.paced(ofMirror), builder.WithPredicates(onlyStatus)).
		Watches(&addonsv1.HelmChartProxy{}, r.pace.paced(ofItself), builder.WithPredicates(onlyStatus)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(e.ofCluster)).
		Watches(&fleetv1.Bundle{}, r.pace.paced(e.ofBundle)).
		Watches(&fleetv1.HelmOp{}, r.pace.paced(ofMade)).
		Watches(&fleetv1.BundleDeployment{}, r.pace.paced(e.ofDeployment)).
		Watches(&corev1.ConfigMap{}, r.pace.paced(ofMade)).
		Watches(&addonsv1.FleetAddonConfig{}, handler.EnqueueRequestsFromMapFunc(e.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(namespaceMetadata(), handler.EnqueueRequestsFromMapFunc(e.all), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesMetadata(fleetClusterMetadata(), handler.EnqueueRequestsFromMapFunc(e.ofCluster), builder.WithPredicates(predicate.Or[client.Object](
			predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		WatchesMetadata(sources.CRD(), handler.EnqueueRequestsFromMapFunc(e.ofKind), builder.WithPredicates(sources.ContractNews)).
		WatchesRawSource(referred.Source()).
		WatchesRawSource(warm{referred}).
		Complete(r)
}

// warm holds up the controller until the objects that Clusters refer to are listed, but not for long.
// Otherwise each start would first say of every release that they are being listed, and then how it fares.
type warm struct{ *sources.Sources }

var _ source.SyncingSource = warm{}

// Start does nothing: that is waited for is all.
func (warm) Start(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	return nil
}

// WaitForSync waits.
func (w warm) WaitForSync(ctx context.Context) error {
	return w.Warm(ctx, func(client.Object) bool { return true })
}

// enqueuer says which HelmChartProxies an event concerns.
type enqueuer struct{ client.Reader }

// ofCluster returns those that may select a Cluster, or that of a Fleet Cluster: of its namespace, and those that look
// into other namespaces.
func (e *enqueuer) ofCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	var result []reconcile.Request
	for _, proxy := range e.proxies(ctx) {
		if proxy.Namespace == cluster.GetNamespace() || proxy.Spec.NamespaceSelector != nil {
			result = append(result, request(client.ObjectKeyFromObject(&proxy)))
		}
	}
	return result
}

func (e *enqueuer) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var result []reconcile.Request
	for _, proxy := range e.proxies(ctx) {
		result = append(result, request(client.ObjectKeyFromObject(&proxy)))
	}
	return result
}

// ofReferred returns those that may select the Clusters that refer to an object.
func (e *enqueuer) ofReferred(ctx context.Context, object client.Object) []reconcile.Request {
	kind := object.GetObjectKind().GroupVersionKind()
	return e.ofClusters(ctx, client.InNamespace(object.GetNamespace()),
		client.MatchingFields{sources.ByReference: sources.ReferenceKey(kind.Group, kind.Kind, object.GetName())})
}

// ofKind returns those that may select the Clusters that refer to a kind, or all if it is
// theirs.
func (e *enqueuer) ofKind(ctx context.Context, crd client.Object) []reconcile.Request {
	if crd.GetName() == proxyCRD {
		return e.all(ctx, crd)
	}
	return e.ofClusters(ctx, client.MatchingFields{sources.ByKind: crd.GetName()})
}

func (e *enqueuer) ofClusters(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	var clusters clusterv1.ClusterList
	if err := e.List(ctx, &clusters, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing Clusters from the cache failed")
		return nil
	}
	var result []reconcile.Request
	for i := range clusters.Items {
		result = append(result, e.ofCluster(ctx, &clusters.Items[i])...)
	}
	return result
}

func (e *enqueuer) proxies(ctx context.Context) []addonsv1.HelmChartProxy {
	var all addonsv1.HelmChartProxyList
	if err := e.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing HelmChartProxies from the cache failed")
	}
	return all.Items
}

func ofItself(_ context.Context, proxy client.Object) []reconcile.Request {
	return []reconcile.Request{request(client.ObjectKeyFromObject(proxy))}
}

// ofMirror returns the HelmChartProxy that a HelmReleaseProxy belongs to.
func ofMirror(_ context.Context, mirror client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOf(mirror); owner != nil && isProxy(*owner) {
		return []reconcile.Request{request(plan.Key{Namespace: mirror.GetNamespace(), Name: owner.Name})}
	}
	return nil
}

// isName reports whether something may have such a name: whoever makes one up is not to decide how much
// is remembered of it.
func isName(its plan.Key) bool {
	return len(its.Name) <= validation.DNS1123SubdomainMaxLength && len(its.Namespace) <= validation.DNS1123LabelMaxLength
}

// ofMade returns the HelmChartProxy that something was made for. Whoever annotates something
// so has it looked at, and no more.
func ofMade(_ context.Context, object client.Object) []reconcile.Request {
	if proxy, found := plan.ProxyOf(object); found && isName(proxy) {
		return []reconcile.Request{request(proxy)}
	}
	return nil
}

// ofBundle returns the HelmChartProxy that a Bundle was made for, or the HelmOp that Fleet has made
// it of. Where that is gone, its labels tell, unless the name is longer than they can hold: then
// that is looked at now and then.
func (e *enqueuer) ofBundle(ctx context.Context, object client.Object) []reconcile.Request {
	if requests := ofMade(ctx, object); len(requests) > 0 {
		return requests
	}
	op := &fleetv1.HelmOp{}
	if err := e.Get(ctx, client.ObjectKeyFromObject(object), op, client.UnsafeDisableDeepCopy); err == nil {
		return ofMade(ctx, op)
	}
	labels := object.GetLabels()
	return []reconcile.Request{request(plan.Key{Namespace: labels[plan.ProxyNamespaceLabel], Name: labels[plan.ProxyLabel]})}
}

// ofDeployment returns the HelmChartProxy that Fleet deploys something of.
func (e *enqueuer) ofDeployment(ctx context.Context, object client.Object) []reconcile.Request {
	var bundle fleetv1.Bundle
	labels := object.GetLabels()
	key := client.ObjectKey{Namespace: labels[fleetv1.BundleNamespaceLabel], Name: labels[fleetv1.BundleLabel]}
	if err := e.Get(ctx, key, &bundle, client.UnsafeDisableDeepCopy); err != nil {
		return nil // The Bundle's own end has told.
	}
	return e.ofBundle(ctx, &bundle)
}

func request(key plan.Key) reconcile.Request { return reconcile.Request{NamespacedName: key} }
