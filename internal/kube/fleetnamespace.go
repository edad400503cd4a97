package kube

import (
	"context"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// byFleetNamespace indexes Fleet Clusters, and Clusters by their pin, by the namespace that Fleet
// derives, if another could share it.
const byFleetNamespace = "muster.fleetNamespace"

// IndexFleetNamespaces adds the indexes that OtherHolder and PinnedTo read. Most names are too short to be
// indexed.
func IndexFleetNamespaces(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		values client.IndexerFunc
	}{
		{&fleetv1.Cluster{}, func(object client.Object) []string { return fleetNamespaceOf(object.GetNamespace(), object.GetName()) }},
		{&clusterv1.Cluster{}, pinnedNamespace},
	} {
		if err := indexer.IndexField(ctx, index.object, byFleetNamespace, index.values); err != nil {
			return fmt.Errorf("adding index %s: %w", byFleetNamespace, err)
		}
	}
	return nil
}

func pinnedNamespace(cluster client.Object) []string {
	if pin := stamp.PinOf(cluster.GetAnnotations()); pin.IsComplete() {
		return fleetNamespaceOf(cluster.GetNamespace(), pin.ClusterName)
	}
	return nil
}

func fleetNamespaceOf(namespace, fleetCluster string) []string {
	if !stamp.CanShareFleetNamespace(namespace, fleetCluster) {
		return nil
	}
	return []string{stamp.FleetNamespace(namespace, fleetCluster)}
}

// PinnedTo returns the Clusters whose pin leads to the namespace that Fleet derives for a Fleet
// Cluster; none if no other can share it. Callers must not change them.
func PinnedTo(ctx context.Context, cache client.Reader, key types.NamespacedName) ([]clusterv1.Cluster, error) {
	var all clusterv1.ClusterList
	for _, shared := range fleetNamespaceOf(key.Namespace, key.Name) {
		if err := cache.List(ctx, &all, client.MatchingFields{byFleetNamespace: shared}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing Clusters: %w", err)
		}
	}
	return all.Items, nil
}

// OtherHolder returns the Fleet Cluster that has the namespace that Fleet derives for key; zero if key may
// have it. The planned claims are pins that count although their Fleet Clusters do not exist yet. See
// stamp.OtherHolder.
func OtherHolder(ctx context.Context, cache client.Reader, key types.NamespacedName, planned ...stamp.FleetClaim) (types.NamespacedName, error) {
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
	if stamp.IsFleetNamespace(namespace.Annotations) { // The Namespace itself names its owner, whatever other claims there are.
		return stamp.OtherHolder(key, namespace.Annotations, nil), nil
	}
	var all fleetv1.ClusterList
	if err := cache.List(ctx, &all, client.MatchingFields{byFleetNamespace: shared}, client.UnsafeDisableDeepCopy); err != nil {
		return none, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	claims := slices.Clone(planned)
	for i := range all.Items {
		claims = append(claims, stamp.FleetClaim{NamespacedName: client.ObjectKeyFromObject(&all.Items[i]), Since: all.Items[i].CreationTimestamp.Time})
	}
	return stamp.OtherHolder(key, namespace.Annotations, claims), nil
}
