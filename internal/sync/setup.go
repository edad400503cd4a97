package sync

import (
	"context"
	"fmt"
	"maps"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/keymutex"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// Options are the settings of the program, as opposed to those of the FleetAddonConfig.
type Options struct {
	// WatchFilter limits the syncer to Clusters and ClusterClasses whose label
	// cluster.x-k8s.io/watch-filter has this value; empty for all.
	WatchFilter string
	// ClusterConcurrency and ClassConcurrency are how many Clusters, or ClusterGroups
	// and mappings, are reconciled at once.
	ClusterConcurrency, ClassConcurrency int
}

// Setup adds the syncer to a manager. Its reconcilers start when the kinds they
// watch are served.
func Setup(mgr ctrl.Manager, options Options) error {
	tally := NewTally()
	gate := &Gate{mapper: mgr.GetRESTMapper(), missing: []string{"not looked yet"}}
	gate.open = func(ctx context.Context) error { return setupReconcilers(ctx, mgr, options, tally) }
	if err := mgr.Add(everywhere{gate}); err != nil {
		return err
	}

	counts := make(chan event.TypedGenericEvent[*addonsv1.FleetAddonConfig])
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return relay(ctx, tally.Changed(), counts) })); err != nil {
		return err
	}
	status := &configReconciler{
		Client: mgr.GetClient(), settings: &settingsReader{Reader: mgr.GetClient()}, tally: tally, gate: gate, now: time.Now,
		watchFilter: options.WatchFilter,
	}
	return ctrl.NewControllerManagedBy(mgr).Named("fleetaddonconfig").
		For(&addonsv1.FleetAddonConfig{}).
		WatchesRawSource(source.Channel(counts, &handler.TypedEnqueueRequestForObject[*addonsv1.FleetAddonConfig]{})).
		Complete(status)
}

const (
	firstRetry = 5 * time.Millisecond
	// lastRetry is the longest that something is put off because of errors. Somebody else's
	// policy or webhook may have refused it for hours, and be mended now.
	lastRetry = time.Minute
)

func controllerOptions(concurrency int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: concurrency,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}

// everywhere runs a Runnable in every replica, so that a standby's caches are warm.
type everywhere struct{ manager.Runnable }

func (everywhere) NeedLeaderElection() bool { return false }

// relay turns changes of the counts into events, at most one in a statusInterval.
func relay(ctx context.Context, changed <-chan struct{}, out chan<- event.TypedGenericEvent[*addonsv1.FleetAddonConfig]) error {
	config := &addonsv1.FleetAddonConfig{}
	config.Name = addonsv1.FleetAddonConfigName
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case out <- event.TypedGenericEvent[*addonsv1.FleetAddonConfig]{Object: config}:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(statusInterval):
		}
	}
}

func setupReconcilers(ctx context.Context, mgr ctrl.Manager, options Options, tally *Tally) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	store, echoes := apply.NewStore(mgr.GetClient(), mgr.GetScheme()), newEchoes()
	if err := forgetSeen(ctx, mgr, store, echoes); err != nil {
		return err
	}
	unseen := newUnseen(store)
	if err := mgr.Add(unseen); err != nil {
		return err
	}
	itself := &handler.EnqueueRequestForObject{}
	applier := &apply.Applier{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: store}
	settings := &settingsReader{Reader: mgr.GetClient()}
	users := users{Reader: mgr.GetClient(), store: store}
	queues := &enqueuer{Reader: mgr.GetClient(), store: store, echoes: echoes, settings: settings}
	groups := &groupReconciler{Reader: mgr.GetClient(), Applier: applier, users: users, settings: settings, watchFilter: options.WatchFilter, busy: keymutex.NewHashed(64)}
	mappings := &mappingReconciler{
		Reader: mgr.GetClient(), Applier: applier, live: mgr.GetAPIReader(), users: users, settings: settings,
		now: time.Now, busy: keymutex.NewHashed(64), retiring: map[types.NamespacedName]retirement{},
	}

	classKind := &desired.Class{}
	classKind.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind))
	filter := watched(options.WatchFilter)
	concurrency := controllerOptions(options.ClassConcurrency)
	enqueue := handler.EnqueueRequestsFromMapFunc

	if err := ctrl.NewControllerManagedBy(mgr).Named("clustergroup").WithOptions(concurrency).
		For(&fleetv1.ClusterGroup{}).
		WatchesMetadata(classKind, enqueue(queues.groupsOfClass), builder.WithPredicates(filter)).
		Watches(&clusterv1.Cluster{}, enqueue(queues.groupOfCluster), builder.WithPredicates(specOrLabels)).
		Watches(&fleetv1.Cluster{}, enqueue(queues.groupOfFleetCluster), builder.WithPredicates(useNews)).
		Watches(&addonsv1.FleetAddonConfig{}, enqueue(queues.allGroups), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(namespaceMetadata(), enqueue(queues.groupsInNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Channel(unseen.groups, itself)).
		Complete(patient{groups}); err != nil {
		return fmt.Errorf("setting up ClusterGroups: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).Named("bundlenamespacemapping").WithOptions(concurrency).
		For(&fleetv1.BundleNamespaceMapping{}).
		Watches(&clusterv1.Cluster{}, enqueue(queues.mappingOfCluster), builder.WithPredicates(specOrLabels)).
		Watches(&fleetv1.Cluster{}, enqueue(queues.mappingOfFleetCluster), builder.WithPredicates(useNews)).
		Watches(&addonsv1.FleetAddonConfig{}, enqueue(queues.allMappings), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(namespaceMetadata(), enqueue(queues.mappingsInNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Channel(unseen.mappings, itself)).
		Complete(patient{mappings}); err != nil {
		return fmt.Errorf("setting up BundleNamespaceMappings: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).Named("namespace").WithOptions(concurrency).
		For(namespaceMetadata(), builder.OnlyMetadata).
		Watches(&clusterv1.Cluster{}, enqueue(queues.namespaceOf), builder.WithPredicates(specOrLabels)).
		Watches(&fleetv1.Cluster{}, enqueue(queues.namespaceOf), builder.WithPredicates(disowned)).
		Watches(&addonsv1.FleetAddonConfig{}, enqueue(queues.allNamespaces), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(&namespaceReconciler{Client: mgr.GetClient(), users: users, settings: settings}); err != nil {
		return fmt.Errorf("setting up Namespaces: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).Named("clusterclass").WithOptions(concurrency).
		For(classKind, builder.OnlyMetadata, builder.WithPredicates(filter)).
		Complete(&classReconciler{mgr.GetClient()}); err != nil {
		return fmt.Errorf("setting up ClusterClasses: %w", err)
	}

	lists, reads := newLists(mgr.GetCache()), newReads()
	kinds := newKinds(mgr.GetCache(), lists, reads, enqueue(queues.clustersReferringTo))
	sources := newSources(mgr.GetClient(), kinds, lists, reads)
	for _, runnable := range []manager.Runnable{lists, sources} {
		if err := mgr.Add(runnable); err != nil {
			return err
		}
	}
	if err := ctrl.NewControllerManagedBy(mgr).Named("cluster").
		WithOptions(controllerOptions(options.ClusterConcurrency)).
		For(&clusterv1.Cluster{}, builder.WithPredicates(filter, echoes.unheard())).
		Watches(&clusterv1.Cluster{}, enqueue(queues.rivals), builder.WithPredicates(removed)).
		Watches(&fleetv1.Cluster{}, enqueue(queues.clusterOfNewFleetCluster), builder.WithPredicates(created)).
		Watches(&fleetv1.Cluster{}, enqueue(queues.clusterOfFleetCluster), builder.WithPredicates(fleetClusterNews, predicate.Not(created))).
		WatchesRawSource(source.Channel(unseen.clusters, itself)).
		WatchesRawSource(source.Channel(unseen.fleetClusters, enqueue(queues.clusterOfFleetCluster))).
		WatchesRawSource(source.Channel(lists.complete, atItsOwnPriority)).
		WatchesRawSource(source.Func(kinds.start)).
		WatchesMetadata(crdMetadata(), behind(queues.clustersOfKind), builder.WithPredicates(contractNews)).
		WatchesMetadata(classKind, enqueue(queues.clustersOfClass), builder.WithPredicates(labelsOrExistence)).
		WatchesMetadata(namespaceMetadata(), enqueue(queues.clustersInNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&fleetv1.ClusterGroup{}, enqueue(queues.clustersOfGroup), builder.WithPredicates(existence)).
		Watches(&fleetv1.BundleNamespaceMapping{}, enqueue(queues.clustersOfMapping), builder.WithPredicates(existence)).
		Watches(&addonsv1.FleetAddonConfig{}, enqueue(queues.allClusters), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(&clusterReconciler{
			Client: mgr.GetClient(), live: mgr.GetAPIReader(), applier: applier, settings: settings, sources: sources,
			users: users, groups: groups, mappings: mappings, tally: tally, busy: keymutex.NewHashed(256), watchFilter: options.WatchFilter,
			reporter: newReporter(mgr.GetClient(), store, echoes, mgr.GetEventRecorder("muster-syncer")),
		}); err != nil {
		return fmt.Errorf("setting up Clusters: %w", err)
	}
	return nil
}

// classReconciler removes CAAPF's finalizer from ClusterClasses; their groups are
// groupReconciler's.
type classReconciler struct{ client.Client }

// Reconcile looks at one ClusterClass.
func (r *classReconciler) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	class, err := classMetadata(ctx, r.Client, req.NamespacedName)
	if err != nil || class == nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, removeLegacyFinalizer(ctx, r.Client, class)
}

// forgetSeen lets the store forget a write as soon as the cache has it.
func forgetSeen(ctx context.Context, mgr ctrl.Manager, store *apply.Store, echoes *echoes) error {
	for _, object := range []client.Object{
		&clusterv1.Cluster{}, &fleetv1.Cluster{}, &fleetv1.ClusterGroup{}, &fleetv1.BundleNamespaceMapping{},
	} {
		informer, err := mgr.GetCache().GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		saw := func(news any, gone bool) {
			if last, ok := news.(toolscache.DeletedFinalStateUnknown); ok {
				news = last.Obj
			}
			if object, ok := news.(client.Object); ok {
				store.Saw(object, gone)
				if gone {
					echoes.forget(object)
				}
			}
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { saw(object, false) },
			UpdateFunc: func(_, object any) { saw(object, false) },
			DeleteFunc: func(object any) { saw(object, true) },
		}); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	return nil
}

func crdMetadata() *metav1.PartialObjectMetadata {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return crd
}

// settling is how long after a CRD has appeared its kind may not be served yet.
const settling = time.Minute

// contractNews passes what can change whether and in which version a kind is read: a CRD
// that appears, goes or changes its labels, and what happens to a new one. What a start
// finds is not news: nobody has read anything before.
var contractNews = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
			e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
			time.Since(e.ObjectNew.GetCreationTimestamp().Time) < settling && e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion()
	},
}

// existence passes objects that appear and disappear.
var existence = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() },
}

// created passes objects that appear.
var created = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return true },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// removed passes objects that disappear.
var removed = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// disowned passes Fleet Clusters that disappear, and those that are not Muster's any more
// or not of the same Cluster.
var disowned = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return stamp.IsOurs(e.ObjectOld) != stamp.IsOurs(e.ObjectNew) || stamp.OriginOf(e.ObjectOld) != stamp.OriginOf(e.ObjectNew)
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// watched passes objects that the watch filter lets through, and those that have just
// been relabelled out of it, so that nobody counts them any more.
func watched(filter string) predicate.Predicate {
	passes := predicate.NewPredicateFuncs(func(object client.Object) bool { return isWatched(object, filter) })
	passes.UpdateFunc = func(e event.UpdateEvent) bool {
		return isWatched(e.ObjectOld, filter) || isWatched(e.ObjectNew, filter)
	}
	return passes
}

// labelsOrExistence passes objects that appear, disappear, or change labels or annotations.
var labelsOrExistence = predicate.Or[client.Object](existence, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{})

// useNews passes what can change which class a Fleet Cluster keeps a group and a mapping
// for: its labels, and whose it is.
var useNews = predicate.Or[client.Object](labelsOrExistence, disowned)

// specOrLabels passes what can change which class a Cluster uses, its deletion included.
var specOrLabels = predicate.Or[client.Object](labelsOrExistence, predicate.GenerationChangedPredicate{})

// fleetClusterNews passes what concerns a Fleet Cluster's CAPI Cluster: any change
// but those of a status that is not mirrored.
var fleetClusterNews = predicate.Or[client.Object](specOrLabels, predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*fleetv1.Cluster), e.ObjectNew.(*fleetv1.Cluster)
		return bundlesReady(before) != bundlesReady(after) ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences)
	},
})
