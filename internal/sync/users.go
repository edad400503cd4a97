package sync

import (
	"context"
	"fmt"
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
	maker, err := u.find(ctx, namespace, filter, func(cluster *clusterv1.Cluster, labels map[string]string) (bool, error) {
		return u.makes(ctx, in, cluster, labels)
	})
	if err != nil || maker == nil {
		return use{}, err
	}
	return useOf(maker), nil
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
	keeper, err := u.find(ctx, namespace, filter, func(cluster *clusterv1.Cluster, labels map[string]string) (bool, error) {
		return isKeeper(in, cluster, labels), nil
	})
	if err != nil || keeper != nil {
		return keeper != nil, err
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
	if err := u.Get(ctx, types.NamespacedName{Namespace: fleetCluster.Namespace, Name: name}, &cluster, client.UnsafeDisableDeepCopy); err != nil {
		return list.Items, client.IgnoreNotFound(err)
	}
	if stamp.MayBeFrom(in.Cluster, fleetCluster, cluster.Name) {
		list.Items = append(list.Items, cluster)
	}
	return list.Items, nil
}

// hasUID reports whether a Cluster of the namespace has the UID. Only a Fleet Cluster that
// an earlier Cluster left behind, or that somebody has forged, makes anybody ask.
func (u users) hasUID(ctx context.Context, namespace string, uid types.UID) bool {
	var list clusterv1.ClusterList
	if err := u.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{byUID: string(uid)}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return true // Nothing is taken over in doubt.
	}
	return len(list.Items) > 0
}

// few is how many Clusters are looked at before all are listed. Nearly every Cluster is a
// maker, and a list of thousands costs as much as many looks.
const few = 8

// find returns a Cluster of a namespace, to be read only, that is what is looked for; nil
// if there is none. It is asked with the labels of the Namespace; one that is not in the
// cache has none, and its Clusters are looked at.
func (u users) find(ctx context.Context, namespace string, filter client.MatchingFields, is func(*clusterv1.Cluster, map[string]string) (bool, error)) (*clusterv1.Cluster, error) {
	metadata := namespaceMetadata()
	if err := u.Get(ctx, types.NamespacedName{Name: namespace}, metadata, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	options := []client.ListOption{client.InNamespace(namespace), client.UnsafeDisableDeepCopy}
	if filter != nil {
		options = append(options, filter)
	}
	for _, limit := range []client.Limit{few, 0} {
		var list clusterv1.ClusterList
		if err := u.List(ctx, &list, append(options[:len(options):len(options)], limit)...); err != nil {
			return nil, fmt.Errorf("listing Clusters: %w", err)
		}
		for i := range list.Items {
			if found, err := is(&list.Items[i], metadata.Labels); err != nil || found {
				return &list.Items[i], err
			}
		}
		if len(list.Items) < few {
			break
		}
	}
	return nil, nil
}
