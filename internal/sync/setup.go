// Package sync keeps Fleet's objects in line with the stamped CAPI Clusters. It decides when, and in
// which order, to write objects. Package desired decides their content, and package kube how to write
// them.
//
// Each Cluster is reconciled by itself, and each namespace: the groups and mappings that its Clusters need (namespace.go).
// Because Fleet does not watch groups and mappings when it targets bundles, the cluster reconciler
// ensures that they exist before the Fleet Cluster does.
package sync

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Options are the settings of the program; the FleetAddonConfig holds the user's.
type Options struct {
	// WatchFilter limits the syncer to Clusters and ClusterClasses whose label
	// cluster.x-k8s.io/watch-filter has this value; empty for all.
	WatchFilter string
	// ClusterConcurrency and ClassConcurrency are how many Clusters, or ClusterGroups
	// and mappings, are reconciled at once.
	ClusterConcurrency, ClassConcurrency int
	// StaleAfter is how long Fleet's agent on a cluster may be silent before FleetBundlesReady is
	// Unknown: more than Fleet's agentCheckinInterval.
	StaleAfter time.Duration
	// Cache holds the options of two caches: the manager's, and the cache of the objects that Clusters
	// refer to.
	Cache cache.Options
}

// Setup adds the syncer to a manager. Its reconcilers start when the kinds they
// watch are served.
func Setup(mgr ctrl.Manager, options Options) error {
	namespace := os.Getenv("POD_NAMESPACE")
	current := settings.NewReader(mgr.GetClient()).WithRecord(mgr.GetAPIReader(), mgr.GetClient(), namespace)
	fields := &fleetFields{crds: mgr.GetClient(), live: mgr.GetAPIReader()}
	gate := &Gate{crds: mgr.GetClient(), mapper: mgr.GetRESTMapper()}
	status := &configReconciler{
		Client: mgr.GetClient(), settings: current, fields: fields, gate: gate, now: time.Now, recorder: mgr.GetEventRecorder("muster-syncer"),
		watchFilter: options.WatchFilter, namespaces: options.Cache.DefaultNamespaces,
		installer: newPresence(mgr.GetAPIReader(), namespace, stamp.InstallerLease),
		helm:      newPresence(mgr.GetAPIReader(), namespace, stamp.HelmLease),
	}
	gate.open = func(ctx context.Context) error { return setupReconcilers(ctx, mgr, options, status) }
	if err := mgr.Add(everyReplica{gate}); err != nil {
		return err
	}
	return status.setUp(mgr)
}

// everyReplica runs a Runnable in every replica, so that a standby's caches are warm.
type everyReplica struct{ manager.Runnable }

func (everyReplica) NeedLeaderElection() bool { return false }

// common holds the parts that the reconcilers share.
type common struct {
	ctrl.Manager
	Options
	store        *kube.Store
	applier      *kube.Applier
	settings     *settings.Reader
	fields       *fleetFields
	targets      *targets
	rancher      *rancher.Client
	events       *enqueuer
	bundlesReady bundlesReady
}

func setupReconcilers(ctx context.Context, mgr ctrl.Manager, options Options, status *configReconciler) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	store := kube.NewStore(mgr.GetClient(), mgr.GetScheme())
	c := &common{
		Manager: mgr, Options: options, store: store,
		applier:      &kube.Applier{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: store},
		settings:     status.settings,
		fields:       status.fields,
		bundlesReady: bundlesReady{staleAfter: options.StaleAfter, now: time.Now},
	}
	c.events = &enqueuer{mgr.GetClient()}
	reader := references.NewReader(ctx, mgr.GetClient(), mgr.GetRESTMapper(), kinds.CachesOf(mgr, options.Cache),
		atLowPriority(c.events.clustersReferringTo), atLowPriority(c.events.clustersOfKind))
	if err := reader.Warm(ctx, func(cluster client.Object) bool { return isWatched(cluster, options.WatchFilter) }); err != nil {
		return err
	}
	ofRancher := options.Cache
	ofRancher.DefaultTransform, ofRancher.DefaultNamespaces = rancher.Trim, nil
	c.rancher = rancher.NewClient(ctx, c.applier, options.Cache.DefaultNamespaces, kinds.CachesOf(mgr, ofRancher))
	c.targets = newTargets(c)
	for _, reconciler := range []interface{ setUp(c *common) error }{
		&namespaceReconciler{Client: mgr.GetClient(), targets: c.targets, settings: c.settings, namespaces: options.Cache.DefaultNamespaces},
		newClusterReconciler(c, reader),
		newHoldReconciler(c, reader),
	} {
		if err := reconciler.setUp(c); err != nil {
			return fmt.Errorf("setting up %T: %w", reconciler, err)
		}
	}
	ofCAAPF := ctrl.NewControllerManagedBy(mgr).Named("clusterclass").WithOptions(controllerOptions(options.ClassConcurrency)).
		For(newClass(), builder.OnlyMetadata, builder.WithPredicates(watched(options.WatchFilter), kube.News)).
		Complete(kube.Consistent(kube.ClassesOfCAAPF{Applier: c.applier}))
	return errors.Join(status.watchClusters(c), registerCounts(c), ofCAAPF)
}

const (
	// longestWait is how long, at most, what has no event waits for the next look: a registrar may have stopped.
	longestWait = kube.LongestWait
	// patience is how long something may be missing or under way before the syncer goes on without it, or says so: no event
	// says that a FleetAddonConfig is not replaced, a Lease not renewed, a Namespace not removed.
	patience = time.Minute
)

func controllerOptions(concurrency int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: concurrency,
		RateLimiter:             kube.RateLimiter(),
	}
}

// Indexes, so that "who uses it now?" does not walk through all clusters.
const (
	byClass    = "muster.class"    // "<class namespace>/<class name>" of a Cluster's topology
	byGroup    = "muster.group"    // name of the cross-namespace ClusterGroup that a Cluster, or a Fleet Cluster of ours, uses
	byPin      = "muster.pin"      // name of the Fleet Cluster it is pinned to
	byUID      = "muster.uid"      // UID of a Cluster
	byConflict = "muster.conflict" // the Namespace in Fleet that a Cluster waits for, because another has it
	byOrigin   = "muster.origin"   // the CAPI Cluster a Fleet Cluster was made from: originName and originUID
	byReleased = "muster.released" // "true" for a released Fleet Cluster
	byMapped   = "muster.mapped"   // namespace of the Clusters that a mapping is for
)

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		values client.IndexerFunc
	}{
		{&clusterv1.Cluster{}, byClass, func(o client.Object) []string {
			return nonEmpty(o.(*clusterv1.Cluster).GetClassKey().String())
		}},
		{&clusterv1.Cluster{}, byGroup, groupOf},
		{&fleetv1.Cluster{}, byGroup, groupOf},
		{&clusterv1.Cluster{}, byPin, func(o client.Object) []string {
			return nonEmpty(stamp.PinOf(o.GetAnnotations()).ClusterName)
		}},
		{&clusterv1.Cluster{}, byUID, func(o client.Object) []string { return nonEmpty(string(o.GetUID())) }},
		{&clusterv1.Cluster{}, byConflict, conflictOf},
		{&fleetv1.Cluster{}, byOrigin, origins},
		{&fleetv1.Cluster{}, byReleased, func(o client.Object) []string {
			if o.GetAnnotations()[stamp.ReleasedAnnotation] != "true" {
				return nil
			}
			return []string{"true"}
		}},
		{&fleetv1.Cluster{}, byWorkspaceGroup, workspaceGroupOf},
		{&fleetv1.BundleNamespaceMapping{}, byMapped, mappedBy},
		{&clusterv1.Cluster{}, references.ByReference, references.References},
		{&clusterv1.Cluster{}, references.ByKind, references.Kinds},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("adding index %s: %w", index.name, err)
		}
	}
	return errors.Join(kube.IndexFleetNamespaces(ctx, indexer), rancher.IndexFields(ctx, indexer))
}

// groupOf indexes Clusters and Fleet Clusters by the group of their use.
func groupOf(object client.Object) []string {
	if fleetCluster, isFleets := object.(*fleetv1.Cluster); isFleets {
		return nonEmpty(useOfFleet(fleetCluster).group().Name)
	}
	return nonEmpty(needOf(object.(*clusterv1.Cluster)).group().Name)
}

// conflictOf returns the Namespace that the condition of a Cluster names, as stamp.SharedFleetNamespace writes it.
func conflictOf(cluster client.Object) []string {
	last := meta.FindStatusCondition(cluster.(*clusterv1.Cluster).Status.Conditions, addonsv1.FleetImportedCondition)
	name := ""
	if last == nil || last.Reason != addonsv1.NameConflictReason {
		return nil
	}
	_, _ = fmt.Sscanf(last.Message, "Fleet would give it Namespace %q", &name) // Other conflicts say something else.
	return nonEmpty(name)
}

// origins returns the keys by which a CAPI Cluster finds its Fleet Cluster.
func origins(cluster client.Object) []string {
	its := cluster.GetAnnotations()
	result := []string{originName(its[stamp.ImportedFromAnnotation]), originUID(types.UID(its[stamp.ImportedUIDAnnotation]))}
	for _, owner := range cluster.GetOwnerReferences() {
		if stamp.IsCluster(owner) {
			result = append(result, originName(owner.Name), originUID(owner.UID))
		}
	}
	return slices.DeleteFunc(result, func(key string) bool { return key == originName("") || key == originUID("") })
}

func originName(name string) string  { return "name/" + name }
func originUID(uid types.UID) string { return "uid/" + string(uid) }

func nonEmpty(value string) []string {
	if value == "" || value == "/" {
		return nil
	}
	return []string{value}
}

// required holds the kinds that the syncer cannot work without, by the names of their CRDs.
var required = map[string]schema.GroupVersionKind{
	"clusters.cluster.x-k8s.io":               clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind),
	"clusterclasses.cluster.x-k8s.io":         clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind),
	fleetClusterCRD:                           fleetv1.SchemeGroupVersion.WithKind("Cluster"),
	"clustergroups.fleet.cattle.io":           fleetv1.SchemeGroupVersion.WithKind("ClusterGroup"),
	"bundlenamespacemappings.fleet.cattle.io": fleetv1.SchemeGroupVersion.WithKind("BundleNamespaceMapping"),
}

// configCRD is the name of the CRD of the FleetAddonConfig.
const configCRD = "fleetaddonconfigs.addons.cluster.x-k8s.io"

// ownCRDs are the CRDs of Muster's kinds. HelmChartProxies and HelmReleaseProxies may be of another program.
var ownCRDs = []string{configCRD, stamp.HelmCRD, "helmreleaseproxies.addons.cluster.x-k8s.io"}

// requiredCRDs passes the CRDs of the required kinds. A CRD that has changed may be served only now, or have other fields.
var requiredCRDs = predicate.NewPredicateFuncs(func(crd client.Object) bool {
	_, isRequired := required[crd.GetName()]
	return isRequired
})

// reportedCRDs passes the CRDs of the required kinds, and of Muster's own.
var reportedCRDs = predicate.Or(requiredCRDs, predicate.NewPredicateFuncs(func(crd client.Object) bool {
	return slices.Contains(ownCRDs, crd.GetName())
}))

// olderCRDs says which of Muster's CRDs are older than the program, whose namespace tells the chart's from another program's;
// empty if none is.
func olderCRDs(ctx context.Context, crds client.Reader, namespace string) (string, error) {
	var older []string
	for _, name := range ownCRDs {
		crd := references.CRD()
		if err := crds.Get(ctx, client.ObjectKey{Name: name}, crd); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return "", fmt.Errorf("reading CRD %s: %w", name, err)
		}
		isOurs := name == configCRD || stamp.IsHelmCRDOurs(crd, namespace)
		if revision, _ := strconv.Atoi(crd.Annotations[addonsv1.SchemaRevisionAnnotation]); isOurs && revision < addonsv1.SchemaRevision {
			older = append(older, name)
		}
	}
	if older == nil {
		return "", nil
	}
	return "older than the syncer: CRD " + strings.Join(older, ", CRD ") + "; apply the CRDs of the syncer's version, nothing needs to be restarted", nil
}

// Gate holds the reconcilers back until the kinds they watch are served, so that
// Muster, Cluster API and Fleet may be installed in any order.
type Gate struct {
	crds   client.Reader
	mapper meta.RESTMapper
	open   func(context.Context) error
	// opened means that the reconcilers are set up, or are being set up.
	opened atomic.Bool
}

// Start waits for the kinds, then opens. It is a manager's Runnable.
func (g *Gate) Start(ctx context.Context) error {
	if kinds.WaitServed(ctx, g.missing) != nil {
		return nil //nolint:nilerr // the program stops
	}
	g.opened.Store(true)
	return g.open(ctx)
}

// missing names the required kinds that are not served, or returns "". A kind, with all its objects,
// may disappear while Muster runs. The mapper never forgets a kind, so missing reads the CRDs, too.
func (g *Gate) missing(ctx context.Context) (string, error) {
	var missing []string
	for name, kind := range required {
		crd := references.CRD()
		err := g.crds.Get(ctx, client.ObjectKey{Name: name}, crd)
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("reading CRD %s: %w", name, err)
		}
		if err == nil && crd.DeletionTimestamp.IsZero() {
			_, err = g.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		}
		if err != nil || !crd.DeletionTimestamp.IsZero() {
			missing = append(missing, kind.GroupKind().String())
		}
	}
	slices.Sort(missing)
	metrics.Condition(addonsv1.APIsAvailableCondition, len(missing) == 0)
	return strings.Join(missing, ", "), nil
}

// fleetFields says which fields of Fleet Clusters the API server serves: an apply with another one is refused. It reads the
// CRD, which is large, once for each generation.
type fleetFields struct {
	crds client.Reader // the metadata, from the cache
	live client.Reader

	mu          sync.Mutex
	of          types.UID
	generation  int64
	pullSecrets bool
}

// fleetClusterCRD is the name of the CRD of Fleet Clusters.
const fleetClusterCRD = "clusters.fleet.cattle.io"

// havePullSecrets reports whether Fleet Clusters have the field agentPullSecrets: Fleet has it since 0.16. Without a CRD, which
// others report, they do.
func (f *fleetFields) havePullSecrets(ctx context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, crd := client.ObjectKey{Name: fleetClusterCRD}, references.CRD()
	if err := f.crds.Get(ctx, key, crd, client.UnsafeDisableDeepCopy); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	if f.of == crd.UID && f.generation == crd.Generation {
		return f.pullSecrets, nil
	}
	whole := &unstructured.Unstructured{}
	whole.SetGroupVersionKind(crd.GroupVersionKind())
	if err := f.live.Get(ctx, key, whole); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading CRD %s: %w", fleetClusterCRD, err)
	}
	f.of, f.generation, f.pullSecrets = whole.GetUID(), whole.GetGeneration(), false
	versions, _, _ := unstructured.NestedSlice(whole.Object, "spec", "versions")
	for _, its := range versions {
		version, _ := its.(map[string]any)
		_, found, _ := unstructured.NestedFieldNoCopy(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "agentPullSecrets")
		f.pullSecrets = f.pullSecrets || found && version["name"] == fleetv1.SchemeGroupVersion.Version
	}
	return f.pullSecrets, nil
}

// limit returns settings without what Fleet Clusters have no field for; unserved names that.
func (f *fleetFields) limit(ctx context.Context, in *settings.InForce) (limited *settings.InForce, unserved, err error) {
	if in.Cluster.AgentPullSecrets == nil {
		return in, nil, nil
	}
	if served, err := f.havePullSecrets(ctx); served || err != nil {
		return in, nil, err
	}
	copied := *in
	copied.Cluster.AgentPullSecrets = nil
	copied.Effect += " without agentPullSecrets"
	return &copied, errors.New("spec.cluster.agentPullSecrets has no effect: the CRD " + fleetClusterCRD + " has no such field; install Fleet 0.16 or newer"), nil
}
