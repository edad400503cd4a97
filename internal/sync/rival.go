package sync

import (
	"context"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
)

// rivalOf returns the Cluster or Fleet Cluster that holds the namespace in Fleet that a Fleet Cluster
// of this name would get; zero if the Cluster may have that namespace.
//
// The webhook checks names as Clusters are created. The syncer checks a Cluster that is selected
// later, or that was created while the webhook was down: before it pins the Cluster, and before it
// makes the Fleet Cluster. A Cluster in Fleet yields to Fleet Clusters only.
func (l *scopeReader) rivalOf(ctx context.Context, s *scope, name string) (types.NamespacedName, error) {
	key := types.NamespacedName{Namespace: s.cluster.Namespace, Name: name}
	if !stamp.CanShareFleetNamespace(key.Namespace, key.Name) {
		return types.NamespacedName{}, nil
	}
	var planned []stamp.FleetClaim
	if !s.has() {
		// The cache may lag behind the Fleet Clusters that this process makes for other Clusters.
		if err := l.waitForRivals(ctx, key); err != nil {
			return types.NamespacedName{}, err
		}
		pinned, err := kube.PinnedTo(ctx, l, key)
		if err != nil {
			return types.NamespacedName{}, err
		}
		for i := range pinned {
			selected, err := l.isSelected(ctx, s, &pinned[i])
			if err != nil {
				return types.NamespacedName{}, err
			}
			if yieldsTo(s.cluster, &pinned[i], selected) {
				planned = append(planned, stamp.FleetClaim{NamespacedName: types.NamespacedName{
					Namespace: pinned[i].Namespace, Name: stamp.PinOf(pinned[i].Annotations).ClusterName,
				}})
			}
		}
	}
	return kube.RivalOf(ctx, l, key, planned...)
}

// waitForRivals returns kube.ErrBehind while the cache does not show a Fleet Cluster that this process has made for another
// Cluster, in the same namespace in Fleet.
func (l *scopeReader) waitForRivals(ctx context.Context, key types.NamespacedName) error {
	creating, err := l.store.Creating(&fleetv1.Cluster{})
	for _, other := range creating {
		if err == nil && stamp.FleetNamespace(other.Namespace, other.Name) == stamp.FleetNamespace(key.Namespace, key.Name) {
			_, err = l.store.Get(ctx, other, &fleetv1.Cluster{})
		}
	}
	return err
}

// isSelected reports whether another Cluster is selected.
func (l *scopeReader) isSelected(ctx context.Context, s *scope, other *clusterv1.Cluster) (bool, error) {
	namespace := namespaceMetadata()
	if err := l.Get(ctx, client.ObjectKey{Name: other.Namespace}, namespace, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading Namespace: %w", err)
	}
	selected, _ := stamp.SubjectOf(other, namespace.Labels).IsSelected(s.in.Cluster)
	return selected, nil
}

// yieldsTo reports whether a Cluster that is not in Fleet leaves a namespace in Fleet to another
// Cluster whose pin leads there.
//
// The webhook lets no tenant write a pin, but while it is down, tenants can. So a Cluster that is
// pinned, but not accepted yet, yields to accepted ones; otherwise a forged pin would pass for a
// checked one. A Cluster that is not pinned yet yields to every pin of a selected Cluster: the webhook
// has checked that pin, or the syncer accepts it within moments. Creation times decide nothing, since
// a Cluster can be created long before it is selected.
func yieldsTo(cluster, other *clusterv1.Cluster, otherIsSelected bool) bool {
	switch {
	case client.ObjectKeyFromObject(other) == client.ObjectKeyFromObject(cluster), !otherIsSelected, !other.DeletionTimestamp.IsZero():
		return false
	case !stamp.PinOf(cluster.Annotations).IsComplete():
		return true
	default:
		return isAccepted(other) && !isAccepted(cluster)
	}
}

// acceptedReasons are the reasons of FleetImported that the syncer writes only after its check of
// the namespace in Fleet.
var acceptedReasons = []string{addonsv1.ImportedReason, addonsv1.WaitingForControlPlaneReason, addonsv1.TemplateValuesUnresolvedReason, addonsv1.TooMuchMetadataReason, addonsv1.FleetClusterDeletingReason, addonsv1.WaitingForAgentReason, addonsv1.RegistrarMissingReason, addonsv1.WaitingForFleetReason}

// isAccepted reports whether the syncer has found that a pinned Cluster may have its namespace in
// Fleet. Tenants can write annotations, but not the status.
func isAccepted(cluster *clusterv1.Cluster) bool {
	condition := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	return condition != nil && slices.Contains(acceptedReasons, condition.Reason)
}
