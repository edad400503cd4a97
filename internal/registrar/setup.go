// Package registrar registers Clusters in Fleet before their agents connect, for clusters that the management
// cluster cannot reach. For each it issues a manifest with that cluster's own credential, in a Secret next to the
// Cluster. It is a separate program because it writes Secrets.
//
// The next step is decided in decide.go, the contents of the manifest in manifest.go; both are pure.
// The package trusts nothing on a Secret or a ClusterRegistration that a tenant of one namespace could
// have written about another.
package registrar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// byFleetCluster indexes ClusterRegistrations by the UID of the Fleet Cluster that owns them.
	byFleetCluster = "fleet-cluster"
	// byClientID indexes ClusterRegistrations by their clientID.
	byClientID = "client-id"
	// byRegistration indexes records by the UID of their ClusterRegistration.
	byRegistration = "registration"
	// byUID indexes Clusters by their UID.
	byUID = "uid"
	// fleetsOwn is a label that Fleet's own Bundles have, but users' Bundles do not.
	fleetsOwn = "objectset.rio.cattle.io/hash"
	// agentResource is the resource of Fleet's Bundle that holds the agent.
	agentResource = "agent.yaml"

	// fastRetries is how many times a failed reconcile is tried again soon: usually the cache lags behind.
	fastRetries = 10
)

// AddTo adds the options as flags.
func (o *Options) AddTo(fs *pflag.FlagSet) {
	fs.StringVar(&o.FleetNamespace, "fleet-namespace", defaultFleetNamespace, "The namespace of Fleet and its settings.")
	fs.StringVar(&o.RegistrationNamespace, "fleet-registration-namespace", defaultRegistrationNamespace, "The namespace in which Fleet stores the credentials of registered clusters.")
	fs.StringVar(&o.Namespace, "namespace", "", "The only namespace whose Clusters are watched; all if empty.")
	fs.StringVar(&o.WatchFilter, "watch-filter", "", "Watch only Clusters whose label cluster.x-k8s.io/watch-filter has this value; all if empty.")
	fs.IntVar(&o.Concurrency, "cluster-concurrency", 4, "How many Clusters are reconciled at once.")
}

// Cache limits the cache to the objects that the registrar reads.
func (o *Options) Cache() cache.Options {
	own, err := labels.NewRequirement(fleetsOwn, selection.Exists, nil)
	if err != nil { // The requirement is constant.
		panic(err)
	}
	options := cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {
				Namespaces: map[string]cache.Config{o.FleetNamespace: {}},
				Field:      fields.OneTermEqualSelector("metadata.name", fleetConfigName),
			},
			&corev1.Secret{}: {
				Namespaces: map[string]cache.Config{o.RegistrationNamespace: {}},
				Field:      fields.OneTermEqualSelector("type", recordType),
			},
			&fleetv1.Bundle{}: {Label: labels.NewSelector().Add(*own)},
		},
		DefaultTransform: trim,
	}
	if o.Namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{o.Namespace: {}}
	}
	return options
}

// watched are the kinds that must be served before the registrar can work.
var watched = []schema.GroupVersionKind{
	clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind),
	fleetv1.SchemeGroupVersion.WithKind("Cluster"),
	fleetv1.SchemeGroupVersion.WithKind("ClusterRegistration"),
	fleetv1.SchemeGroupVersion.WithKind("Bundle"),
}

// Setup adds the registrar to a manager. It starts once the API server serves the kinds that it watches.
func Setup(mgr ctrl.Manager, options Options) error {
	return program.WhenServed(mgr, watched, func(ctx context.Context) error { return setUp(ctx, mgr, options) })
}

func setUp(ctx context.Context, mgr ctrl.Manager, options Options) error {
	indexer := mgr.GetFieldIndexer()
	if err := errors.Join(
		kube.IndexFleetNamespaces(ctx, indexer),
		indexer.IndexField(ctx, &fleetv1.ClusterRegistration{}, byFleetCluster, ownersOf),
		indexer.IndexField(ctx, &fleetv1.ClusterRegistration{}, byClientID, clientIDOf),
		indexer.IndexField(ctx, &corev1.Secret{}, byRegistration, func(object client.Object) []string {
			return []string{string(object.(*corev1.Secret).Data[recordRegistration])}
		}),
		indexer.IndexField(ctx, &clusterv1.Cluster{}, byUID, func(object client.Object) []string { return []string{string(object.GetUID())} }),
	); err != nil {
		return err
	}
	r := &reconciler{
		Client: mgr.GetClient(), Options: options, live: mgr.GetAPIReader(),
		settings: settings.NewReader(mgr.GetClient()).WithRecord(mgr.GetAPIReader(), nil, os.Getenv("POD_NAMESPACE")),
		recorder: mgr.GetEventRecorder("muster-registrar"), now: time.Now,
	}
	if err := metrics.Count(mgr.Elected(), r.count, clustersByReason); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ctrl.NewControllerManagedBy(mgr).Named("registration").
		WithOptions(controller.Options{
			MaxConcurrentReconciles: options.Concurrency,
			// Fleet keeps a credential for 40 minutes, so retries must not become rare.
			RateLimiter: workqueue.NewTypedItemFastSlowRateLimiter[reconcile.Request](pollInterval, checkInterval, fastRetries),
		}).
		// A reconcile of a registered Cluster costs a request for its Secret, so status reports from agents
		// must not cause one.
		For(&clusterv1.Cluster{}, builder.WithPredicates(kube.News)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.ofRecord)).
		Watches(&fleetv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(ofFleetCluster), builder.WithPredicates(kube.News)).
		Watches(&fleetv1.ClusterRegistration{}, handler.EnqueueRequestsFromMapFunc(r.ofRegistration), builder.WithPredicates(kube.News)).
		Watches(&fleetv1.Bundle{}, handler.EnqueueRequestsFromMapFunc(r.ofBundle), builder.WithPredicates(kube.News)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.all)).
		Watches(&addonsv1.FleetAddonConfig{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.NewPredicateFuncs(r.settings.Saw), predicate.GenerationChangedPredicate{})).
		WatchesMetadata(namespace, handler.EnqueueRequestsFromMapFunc(r.inNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Complete(r)
}

var clustersByReason = metrics.NewGauge("muster_manifests_by_reason",
	"CAPI Clusters by the reason of their condition FleetAgentManifestReady. Clusters without the condition are left out.", "reason", addonsv1.FleetAgentManifestReadyReasons...)

// count counts the watched Clusters in the cache by the reason of their condition.
func (r *reconciler) count(ctx context.Context, counts metrics.Counts) error {
	var clusters clusterv1.ClusterList
	if err := r.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range clusters.Items {
		if its := &clusters.Items[i]; r.isWatched(its) {
			counts.Add(clustersByReason, conditions.GetReason(its, addonsv1.FleetAgentManifestReadyCondition), 1)
		}
	}
	return nil
}

func (r *reconciler) isWatched(cluster *clusterv1.Cluster) bool {
	return r.WatchFilter == "" || capilabels.HasWatchLabel(cluster, r.WatchFilter)
}

// ownersOf returns the UIDs of the Fleet Clusters that own an object.
func ownersOf(object client.Object) []string {
	var owners []string
	for _, owner := range object.GetOwnerReferences() {
		if isFleetCluster(owner) {
			owners = append(owners, string(owner.UID))
		}
	}
	return owners
}

func clientIDOf(registration client.Object) []string {
	return []string{registration.(*fleetv1.ClusterRegistration).Spec.ClientID}
}

func isFleetCluster(owner metav1.OwnerReference) bool {
	return owner.Kind == "Cluster" && owner.APIVersion == fleetv1.SchemeGroupVersion.String()
}

func ofFleetCluster(_ context.Context, object client.Object) []reconcile.Request {
	name := stamp.OriginOf(object).Name
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}

// ofRecord enqueues the Cluster of a record, even if it is gone.
func (r *reconciler) ofRecord(_ context.Context, object client.Object) []reconcile.Request {
	cluster := clusterOf(object.(*corev1.Secret))
	if cluster.Name == "" || r.Namespace != "" && r.Namespace != cluster.Namespace {
		return nil
	}
	return []reconcile.Request{{NamespacedName: cluster}}
}

func (r *reconciler) named(ctx context.Context, namespace, fleetCluster string) []reconcile.Request {
	var fleet fleetv1.Cluster
	if err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: fleetCluster}, &fleet); err != nil {
		return nil // The Fleet Cluster's own event will follow.
	}
	return ofFleetCluster(ctx, &fleet)
}

// ofRegistration enqueues the Cluster of a ClusterRegistration, found through its record too, because
// the Fleet Cluster may be gone first.
func (r *reconciler) ofRegistration(ctx context.Context, object client.Object) []reconcile.Request {
	var result []reconcile.Request
	var records corev1.SecretList
	if err := r.List(ctx, &records, client.MatchingFields{byRegistration: string(object.GetUID())}, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing records from the cache failed")
	}
	for i := range records.Items {
		result = append(result, r.ofRecord(ctx, &records.Items[i])...)
	}
	for _, owner := range object.GetOwnerReferences() {
		if isFleetCluster(owner) {
			result = append(result, r.named(ctx, object.GetNamespace(), owner.Name)...)
		}
	}
	return result
}

func (r *reconciler) ofBundle(ctx context.Context, object client.Object) []reconcile.Request {
	var result []reconcile.Request
	for _, target := range object.(*fleetv1.Bundle).Spec.Targets {
		if target.ClusterName != "" {
			result = append(result, r.named(ctx, object.GetNamespace(), target.ClusterName)...)
		}
	}
	return result
}

func (r *reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.inNamespace(ctx, &metav1.PartialObjectMetadata{})
}

// inNamespace enqueues the Clusters of a Namespace; all for one without a name.
func (r *reconciler) inNamespace(ctx context.Context, namespace client.Object) []reconcile.Request {
	var clusters clusterv1.ClusterList
	if err := r.List(ctx, &clusters, client.InNamespace(namespace.GetName())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing Clusters from the cache failed")
		return nil
	}
	result := make([]reconcile.Request, len(clusters.Items))
	for i := range clusters.Items {
		result[i].NamespacedName = client.ObjectKeyFromObject(&clusters.Items[i])
	}
	return result
}

// observedClientIDs has an observedClientID for each Cluster.
type observedClientIDs struct{ sync.Map }

// observedClientID says since when the cache has shown the clientID of a Cluster's Fleet Cluster.
type observedClientID struct {
	fleet    types.UID
	clientID string
	since    time.Time
}

// since returns when the present clientID of a Cluster's Fleet Cluster was first observed.
func (s *observedClientIDs) since(cluster types.NamespacedName, fleet *fleetv1.Cluster, now time.Time) time.Time {
	noted, _ := s.Load(cluster)
	last, _ := noted.(observedClientID)
	if last.fleet != fleet.UID || last.clientID != fleet.Spec.ClientID {
		last = observedClientID{fleet.UID, fleet.Spec.ClientID, now}
		s.Store(cluster, last)
	}
	return last.since
}
