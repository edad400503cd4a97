package sync

import (
	"context"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
)

// users answers who needs what is made in a namespace: for a class of another namespace,
// or for having Clusters at all. There are two kinds.
//
// A maker is a Cluster that is claimed, selected now, neither paused nor going. What it
// needs is made, put back and revived. Nothing else is a reason to open one namespace to
// another: labels and annotations are written by tenants.
//
// A keeper is whoever may still be deployed to through what is there: a Cluster that is
// frozen or yet to be claimed, a Fleet Cluster. For it, what is there stays as it is.
type users struct {
	client.Reader
	store *apply.Store
}

// maker returns what a maker of the namespace uses, filtered by an index; zero if there is none.
func (u users) maker(ctx context.Context, in settings.Settings, namespace string, filter client.MatchingFields) (use, error) {
	clusters, labels, err := u.clusters(ctx, namespace, filter)
	if err != nil {
		return use{}, err
	}
	for i := range clusters {
		makes, err := u.makes(ctx, in, &clusters[i], labels)
		if err != nil {
			return use{}, err
		}
		if makes {
			return useOf(&clusters[i]), nil
		}
	}
	return use{}, nil
}

// makes reports whether a Cluster is a maker, and the group that it needs is free.
func (u users) makes(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) (bool, error) {
	if !isMaker(in, cluster, namespaceLabels) {
		return false, nil
	}
	displaced, err := u.displacing(ctx, in, useOf(cluster))
	return displaced == "", err
}

// isMaker reports whether a Cluster is claimed, selected now, neither paused nor going.
func isMaker(in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) bool {
	return stamp.PinOf(cluster.Annotations).IsComplete() && cluster.DeletionTimestamp.IsZero() &&
		!capiannotations.IsPaused(cluster, cluster) && isSelected(in, cluster, namespaceLabels)
}

func isSelected(in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) bool {
	selected, _ := stamp.Selected(in.Cluster, stamp.WithClassLabels(cluster.Labels, cluster.GetClassKey()), namespaceLabels)
	return selected
}

// displacing returns the name of the ClusterClass, beside the Clusters, whose own group
// has the name of the group that a use needs: class "std.classes" of a namespace, and
// class "std" of namespace "classes" used there. Fleet would target one through the other.
func (u users) displacing(ctx context.Context, in settings.Settings, used use) (string, error) {
	if used.isZero() || !in.Cluster.ApplyClassGroup {
		return "", nil
	}
	class, err := classMetadata(ctx, u.Reader, used.group())
	if err != nil || class == nil {
		return "", err
	}
	return class.Name, nil
}

// keeper reports whether something in the namespace keeps what is there, filtered by an
// index that Clusters and Fleet Clusters have in common.
func (u users) keeper(ctx context.Context, in settings.Settings, namespace string, filter client.MatchingFields) (bool, error) {
	clusters, labels, err := u.clusters(ctx, namespace, filter)
	if err != nil {
		return false, err
	}
	for i := range clusters {
		if isKeeper(in, &clusters[i], labels) {
			return true, nil
		}
	}
	var fleetClusters fleetv1.ClusterList
	if err := u.List(ctx, &fleetClusters, client.InNamespace(namespace), filter, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	for i := range fleetClusters.Items {
		if keeps, err := u.keeps(ctx, in, &fleetClusters.Items[i]); err != nil || keeps {
			return keeps, err
		}
	}
	return false, nil
}

// isKeeper reports whether a Cluster keeps what is there: it is claimed, or about to be.
// What CAAPF made, and what was made before a pin was lost, must not go in the moment
// before its users are claimed: Fleet would undeploy.
func isKeeper(in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) bool {
	return stamp.PinOf(cluster.Annotations).IsComplete() ||
		cluster.DeletionTimestamp.IsZero() && isSelected(in, cluster, namespaceLabels)
}

// keeps reports whether a Fleet Cluster from the cache still uses a class: it has
// not just been relabelled by us, and the Cluster it was made from exists or was moved.
func (u users) keeps(ctx context.Context, in settings.Settings, cached *fleetv1.Cluster) (bool, error) {
	var current fleetv1.Cluster
	found, err := u.store.Get(ctx, client.ObjectKeyFromObject(cached), &current)
	if err != nil || !found || useOfFleet(&current) != useOfFleet(cached) {
		return false, err
	}
	if current.Annotations[stamp.ReleasedAnnotation] == "true" {
		return true, nil // Moved: its applications must stay until somebody deletes it.
	}
	return u.hasCluster(ctx, in, &current)
}

// hasCluster reports whether the Cluster that a Fleet Cluster was made from exists. One
// of the same name that was made anew is not it.
func (u users) hasCluster(ctx context.Context, in settings.Settings, fleetCluster *fleetv1.Cluster) (bool, error) {
	candidates, err := u.candidates(ctx, in, fleetCluster)
	if err != nil {
		return false, err
	}
	for i := range candidates {
		relation, _ := stamp.RelationOf(fleetCluster, &candidates[i], func(_ string, uid types.UID) bool {
			return u.hasUID(ctx, fleetCluster.Namespace, uid)
		})
		if relation == stamp.Own {
			return true, nil
		}
	}
	return false, nil
}

// candidates returns the Clusters that a Fleet Cluster may have been made from. CAAPF
// without owner references notes nothing, but gives it the expected name.
func (u users) candidates(ctx context.Context, in settings.Settings, fleetCluster *fleetv1.Cluster) ([]clusterv1.Cluster, error) {
	name := stamp.OriginOf(fleetCluster).Name
	var list clusterv1.ClusterList
	if name == "" {
		name = strings.TrimSuffix(strings.TrimPrefix(fleetCluster.Name, in.Cluster.Prefix), in.Cluster.Suffix)
		if err := u.List(ctx, &list, client.InNamespace(fleetCluster.Namespace), client.MatchingFields{byPin: fleetCluster.Name}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing Clusters: %w", err)
		}
	}
	var cluster clusterv1.Cluster
	if err := u.Get(ctx, types.NamespacedName{Namespace: fleetCluster.Namespace, Name: name}, &cluster, client.UnsafeDisableDeepCopy); err == nil {
		list.Items = append(list.Items, cluster)
	} else if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading a Cluster: %w", err)
	}
	return list.Items, nil
}

// hasUID reports whether a Cluster of the namespace has the UID. Only a Fleet Cluster that
// an earlier Cluster left behind, or that somebody has forged, makes anybody ask.
func (u users) hasUID(ctx context.Context, namespace string, uid types.UID) bool {
	var list clusterv1.ClusterList
	if err := u.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return true // Nothing is taken over in doubt.
	}
	return slices.ContainsFunc(list.Items, func(cluster clusterv1.Cluster) bool { return cluster.UID == uid })
}

// clusters returns the Clusters of a namespace, to be read only, and the labels of the
// Namespace. One that is not in the cache has no labels, and its Clusters are counted.
func (u users) clusters(ctx context.Context, namespace string, filter client.MatchingFields) ([]clusterv1.Cluster, map[string]string, error) {
	options := []client.ListOption{client.InNamespace(namespace), client.UnsafeDisableDeepCopy}
	if filter != nil {
		options = append(options, filter)
	}
	var list clusterv1.ClusterList
	if err := u.List(ctx, &list, options...); err != nil {
		return nil, nil, fmt.Errorf("listing Clusters: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, nil, nil
	}
	metadata := namespaceMetadata()
	if err := u.Get(ctx, types.NamespacedName{Name: namespace}, metadata, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("reading Namespace: %w", err)
	}
	return list.Items, metadata.Labels, nil
}
