package sync

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// release lets go of the Fleet Cluster of a Cluster whose spec.paused is true.
//
// clusterctl move pauses Clusters, copies them to another management cluster, and
// deletes the originals without a moment for anybody to react. A Fleet Cluster that
// was owned would be deleted with the original, and Fleet would uninstall the
// applications of a cluster that lives on. A paused Cluster is deleted by nobody
// else: Cluster API does not finish the deletion of one.
func (r *clusterReconciler) release(ctx context.Context, cluster *clusterv1.Cluster) error {
	if !ptr.Deref(cluster.Spec.Paused, false) {
		return nil
	}
	var live fleetv1.Cluster
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	found, err := r.applier.Store.Get(ctx, key, &live)
	if err != nil || !found || !live.DeletionTimestamp.IsZero() {
		return err
	}
	if !isOwner(&live, cluster) {
		return nil
	}
	return r.patchFleetCluster(ctx, &live, map[string]any{
		"ownerReferences": withoutOwner(&live, cluster),
		"annotations":     map[string]any{desired.ReleasedAnnotation: "true"},
	})
}

// reclaim undoes a release when the Cluster is unpaused: the Fleet Cluster has its
// owner again, if it is to have one, even where nothing else of it may be changed.
func (r *clusterReconciler) reclaim(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) error {
	var live fleetv1.Cluster
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	found, err := r.applier.Store.Get(ctx, key, &live)
	if err != nil || !found || live.Annotations[desired.ReleasedAnnotation] == "" || !live.DeletionTimestamp.IsZero() {
		return err
	}
	if ours, _ := belongsTo(&live, cluster); !ours {
		return nil
	}
	metadata := map[string]any{"annotations": map[string]any{desired.ReleasedAnnotation: nil}}
	if in.Cluster.SetOwnerReferences && !isOwner(&live, cluster) {
		metadata["ownerReferences"] = append(slices.Clone(live.OwnerReferences), desired.Owner(cluster))
	}
	return r.patchFleetCluster(ctx, &live, metadata)
}

// disown takes off an owner reference that is not wanted and that an apply leaves
// there, because reclaim put it back by a patch.
func (r *clusterReconciler) disown(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster, live *fleetv1.Cluster) error {
	if in.Cluster.SetOwnerReferences || !in.Cluster.PatchResource || !isOwner(live, cluster) {
		return nil
	}
	return r.patchFleetCluster(ctx, live, map[string]any{"ownerReferences": withoutOwner(live, cluster)})
}

func isOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	return len(withoutOwner(live, cluster)) < len(live.OwnerReferences)
}

func withoutOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(owner metav1.OwnerReference) bool { return owner.UID == cluster.UID })
}

func (r *clusterReconciler) patchFleetCluster(ctx context.Context, live *fleetv1.Cluster, metadata map[string]any) error {
	metadata["uid"], metadata["resourceVersion"] = live.UID, live.ResourceVersion
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	if err := r.Patch(ctx, live, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager)); err != nil {
		return fmt.Errorf("patching Fleet Cluster %s: %w", client.ObjectKeyFromObject(live), err)
	}
	ctrl.LoggerFrom(ctx).Info("Patched", "kind", "Cluster", "object", client.ObjectKeyFromObject(live).String(),
		"owners", len(live.OwnerReferences))
	if _, err := apply.TrimCached(live); err != nil {
		return err
	}
	return r.applier.Store.Wrote(live)
}
