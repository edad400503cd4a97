package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// users answers who uses a class of another namespace: the claimed Clusters that
// name it, and the Fleet Clusters, of Clusters that exist, that still carry it.
type users struct {
	client.Reader
	store *apply.Store
}

// classes returns the classes that objects of the namespace use, filtered by an
// index; enough to know one of them.
func (u users) class(ctx context.Context, namespace, index, value string) (types.NamespacedName, error) {
	filter := []client.ListOption{client.InNamespace(namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy}

	var clusters clusterv1.ClusterList
	if err := u.List(ctx, &clusters, append(filter, client.Limit(1))...); err != nil {
		return types.NamespacedName{}, fmt.Errorf("listing Clusters: %w", err)
	}
	if len(clusters.Items) > 0 {
		return useOf(&clusters.Items[0]), nil
	}

	var fleetClusters fleetv1.ClusterList
	if err := u.List(ctx, &fleetClusters, filter...); err != nil {
		return types.NamespacedName{}, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	for i := range fleetClusters.Items {
		counts, err := u.counts(ctx, &fleetClusters.Items[i])
		if err != nil {
			return types.NamespacedName{}, err
		}
		if counts {
			return useOfFleet(&fleetClusters.Items[i]), nil
		}
	}
	return types.NamespacedName{}, nil
}

// awaited reports whether a Cluster of the namespace is about to be claimed and wishes
// for what a derived object gives it. What CAAPF made, and what was made before a pin was
// lost, must not go in the moment before its users are claimed: Fleet would undeploy.
func (u users) awaited(ctx context.Context, in settings.Settings, namespace string, wishes func(*clusterv1.Cluster) bool) (bool, error) {
	var unclaimed clusterv1.ClusterList
	if err := u.List(ctx, &unclaimed, client.InNamespace(namespace), client.MatchingFields{byUnclaimed: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing Clusters: %w", err)
	}
	if len(unclaimed.Items) == 0 {
		return false, nil
	}
	labels := namespaceMetadata()
	if err := u.Get(ctx, types.NamespacedName{Name: namespace}, labels, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	for i := range unclaimed.Items {
		cluster := &unclaimed.Items[i]
		if !cluster.DeletionTimestamp.IsZero() || !wishes(cluster) {
			continue
		}
		if selected, _ := stamp.Selected(in.Cluster, stamp.WithClassLabels(cluster.Labels, cluster.GetClassKey()), labels.Labels); selected {
			return true, nil
		}
	}
	return false, nil
}

// counts reports whether a Fleet Cluster from the cache still uses a class: it has
// not just been relabelled by us, and the Cluster it was made from exists or was moved.
func (u users) counts(ctx context.Context, cached *fleetv1.Cluster) (bool, error) {
	var current fleetv1.Cluster
	found, err := u.store.Get(ctx, client.ObjectKeyFromObject(cached), &current)
	if err != nil || !found || useOfFleet(&current) != useOfFleet(cached) {
		return false, err
	}
	if current.Annotations[desired.ReleasedAnnotation] == "true" {
		return true, nil // Moved: its applications must stay until somebody deletes it.
	}
	key := types.NamespacedName{Namespace: cached.Namespace, Name: cached.Annotations[desired.ImportedFromAnnotation]}
	err = u.Get(ctx, key, &clusterv1.Cluster{}, client.UnsafeDisableDeepCopy)
	return err == nil, client.IgnoreNotFound(err)
}
