package observed

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// byFleetNamespace indexes Fleet Clusters that may share their namespace by its name.
const byFleetNamespace = "muster.fleetNamespace"

// IndexRivals adds the index that RivalOf reads.
func IndexRivals(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &fleetv1.Cluster{}, byFleetNamespace, func(fleetCluster client.Object) []string {
		if !stamp.CanShareFleetNamespace(fleetCluster.GetNamespace(), fleetCluster.GetName()) {
			return nil
		}
		return []string{stamp.FleetNamespace(fleetCluster.GetNamespace(), fleetCluster.GetName())}
	}); err != nil {
		return fmt.Errorf("adding index %s: %w", byFleetNamespace, err)
	}
	return nil
}

// RivalOf returns the Fleet Cluster that has the namespace that Fleet derives for another
// one; zero if that may have it. See stamp.FleetRival.
func RivalOf(ctx context.Context, cache client.Reader, key types.NamespacedName) (types.NamespacedName, error) {
	none := types.NamespacedName{}
	if !stamp.CanShareFleetNamespace(key.Namespace, key.Name) {
		return none, nil
	}
	shared := stamp.FleetNamespace(key.Namespace, key.Name)
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := cache.Get(ctx, types.NamespacedName{Name: shared}, namespace, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return none, fmt.Errorf("reading Namespace: %w", err)
	}
	var all fleetv1.ClusterList
	if err := cache.List(ctx, &all, client.MatchingFields{byFleetNamespace: shared}, client.UnsafeDisableDeepCopy); err != nil {
		return none, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	claims := make([]stamp.FleetClaim, len(all.Items))
	for i := range all.Items {
		claims[i] = stamp.FleetClaim{NamespacedName: client.ObjectKeyFromObject(&all.Items[i]), Since: all.Items[i].CreationTimestamp.Time}
	}
	return stamp.FleetRival(key, namespace.Annotations, claims), nil
}
