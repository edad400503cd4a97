package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/stamp"
)

// state is the state that a Cluster is counted in.
type state string

const (
	stateImported   state = "imported"
	statePending    state = "pending"
	stateConflicted state = "conflicted"
	stateFailed     state = "failed"
	stateUnselected state = "unselected"
)

// stateOf returns the state of a Cluster, by its condition FleetImported, or, before it has that, by its pin.
func stateOf(cluster *clusterv1.Cluster) state {
	imported := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	switch {
	case imported == nil && stamp.PinOf(cluster.Annotations).IsComplete(): // The webhook has claimed it just now.
		return statePending
	case imported == nil, imported.Reason == addonsv1.DeselectedReason:
		return stateUnselected
	case imported.Reason == addonsv1.NameConflictReason:
		return stateConflicted
	case imported.Reason == addonsv1.FailedReason:
		return stateFailed
	case isImported(imported):
		return stateImported
	default:
		return statePending
	}
}

// isImported reports whether a condition FleetImported says that the Cluster is in Fleet, and that Muster keeps it up to date.
func isImported(its *metav1.Condition) bool {
	switch its.Reason {
	case addonsv1.PausedReason, addonsv1.DeselectedReason, addonsv1.NameConflictReason, addonsv1.FailedReason:
		return false
	}
	return its.Status == metav1.ConditionTrue
}

var (
	clustersByState = metrics.NewGauge("muster_clusters",
		"CAPI Clusters by state: imported, pending, conflicted, failed, unselected.", "state",
		string(stateImported), string(statePending), string(stateConflicted), string(stateFailed), string(stateUnselected))
	clustersByReason = metrics.NewGauge("muster_clusters_by_reason",
		"CAPI Clusters by the reason of their condition FleetImported. Clusters without the condition are left out.", "reason", addonsv1.FleetImportedReasons...)
	crossNamespaceClass = metrics.NewGauge("muster_cross_namespace_class_clusters",
		"CAPI Clusters whose class is in another namespace, and which therefore receive the bundles of that namespace.", "")
	upgradesHeld = metrics.NewGauge("muster_upgrades_held", "CAPI Clusters whose upgrade waits for its add-ons.", "")
	released     = metrics.NewGauge("muster_released_fleet_clusters",
		"Fleet Clusters that were released for a move and whose CAPI Cluster is gone: it was moved, or deleted.", "")
)

// registerCounts registers the metrics that count Clusters and Fleet Clusters.
func registerCounts(c *common) error {
	count := func(ctx context.Context, counts metrics.Counts) error {
		return countAll(ctx, c.GetClient(), c.WatchFilter, counts)
	}
	return metrics.Count(c.Elected(), count, clustersByState, clustersByReason, crossNamespaceClass, upgradesHeld, released)
}

// countAll counts the Clusters of a cache that have the watch label, and released Fleet Clusters.
func countAll(ctx context.Context, cache client.Reader, watchFilter string, counts metrics.Counts) error {
	if err := countClusters(ctx, cache, watchFilter, func(cluster *clusterv1.Cluster, its state) {
		counts.Add(clustersByState, string(its), 1)
		if imported := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition); imported != nil {
			counts.Add(clustersByReason, imported.Reason, 1)
		}
		if !useOf(cluster).isZero() {
			counts.Add(crossNamespaceClass, "", 1)
		}
		if meta.IsStatusConditionTrue(cluster.Status.Conditions, addonsv1.FleetUpgradeHeldCondition) {
			counts.Add(upgradesHeld, "", 1)
		}
	}); err != nil {
		return err
	}
	return countReleased(ctx, cache, counts)
}

// countClusters calls a function for each Cluster of a cache that has the watch label, with its state. It must not change the
// Cluster, which is not copied.
func countClusters(ctx context.Context, cache client.Reader, watchFilter string, count func(*clusterv1.Cluster, state)) error {
	var clusters clusterv1.ClusterList
	if err := cache.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Clusters: %w", err)
	}
	for i := range clusters.Items {
		if cluster := &clusters.Items[i]; isWatched(cluster, watchFilter) {
			count(cluster, stateOf(cluster))
		}
	}
	return nil
}

// countReleased counts the Fleet Clusters that were released and whose Cluster is gone.
// They were moved, or left over: a syncer that was down while a Cluster was unpaused and
// deleted cannot distinguish the two, and deletes neither.
func countReleased(ctx context.Context, cache client.Reader, counts metrics.Counts) error {
	var list fleetv1.ClusterList
	if err := cache.List(ctx, &list, client.MatchingFields{byReleased: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	for i := range list.Items {
		var cluster clusterv1.Cluster
		key := client.ObjectKey{Namespace: list.Items[i].Namespace, Name: stamp.OriginOf(&list.Items[i]).Name}
		if err := cache.Get(ctx, key, &cluster, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading a Cluster from the cache: %w", err)
		} else if err != nil {
			counts.Add(released, "", 1)
		}
	}
	return nil
}
