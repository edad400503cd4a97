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
func (r *clusterReconciler) release(ctx context.Context, v *visit) error {
	if !ptr.Deref(v.cluster.Spec.Paused, false) || !v.has() || !v.fleet.DeletionTimestamp.IsZero() ||
		!isOwner(v.fleet, v.cluster) && v.fleet.Annotations[stamp.ReleasedAnnotation] == "true" {
		return nil
	}
	return r.patchFleetCluster(ctx, v.fleet, map[string]any{"metadata": map[string]any{
		"ownerReferences": withoutOwner(v.fleet, v.cluster),
		"annotations":     map[string]any{stamp.ReleasedAnnotation: "true", stamp.ImportedUIDAnnotation: v.cluster.UID},
	}})
}

// reclaim undoes a release when the Cluster is unpaused: the Fleet Cluster has its
// owner again, if it is to have one, even where nothing else of it may be changed.
func (r *clusterReconciler) reclaim(ctx context.Context, v *visit) error {
	if !v.has() || v.fleet.Annotations[stamp.ReleasedAnnotation] == "" || !v.fleet.DeletionTimestamp.IsZero() {
		return nil
	}
	annotations := map[string]any{stamp.ReleasedAnnotation: nil}
	metadata := map[string]any{"annotations": annotations}
	if v.in.Cluster.SetOwnerReferences {
		annotations[stamp.ImportedUIDAnnotation] = nil
		if !isOwner(v.fleet, v.cluster) {
			metadata["ownerReferences"] = append(slices.Clone(v.fleet.OwnerReferences), desired.Owner(v.cluster))
		}
	}
	return r.patchFleetCluster(ctx, v.fleet, map[string]any{"metadata": metadata})
}

// takeOver makes a Fleet Cluster that was handed over, or that an earlier Cluster of the
// same name left behind, that of the Cluster: by one write that fails if anybody else
// has written meanwhile, so that of two Clusters one gets it. Fleet believes the agent of
// one that was left behind to be deployed, and is made to deploy it anew.
func (r *clusterReconciler) takeOver(ctx context.Context, v *visit) error {
	annotations := map[string]any{
		stamp.AdoptAnnotation: nil, stamp.ReleasedAnnotation: nil,
		stamp.ImportedFromAnnotation: v.cluster.Name, stamp.ImportedUIDAnnotation: nil,
	}
	metadata := map[string]any{"annotations": annotations}
	// Other owners of the kind are Clusters that do not exist any more.
	owners := slices.DeleteFunc(slices.Clone(v.fleet.OwnerReferences), stamp.IsCluster)
	if v.in.Cluster.SetOwnerReferences {
		metadata["ownerReferences"] = append(owners, desired.Owner(v.cluster))
	} else {
		metadata["ownerReferences"] = owners
		annotations[stamp.ImportedUIDAnnotation] = v.cluster.UID
	}
	change := map[string]any{"metadata": metadata}
	if v.relation == stamp.Orphan {
		change["spec"] = map[string]any{"redeployAgentGeneration": v.fleet.Spec.RedeployAgentGeneration + 1}
	}
	if err := r.patchFleetCluster(ctx, v.fleet, change); err != nil {
		return err
	}
	v.relation = stamp.Own
	return nil
}

func isOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	return len(withoutOwner(live, cluster)) < len(live.OwnerReferences)
}

func withoutOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(owner metav1.OwnerReference) bool { return owner.UID == cluster.UID })
}

// patchFleetCluster changes a Fleet Cluster as it was seen: the write fails if it has
// changed since. The change has metadata.
func (r *clusterReconciler) patchFleetCluster(ctx context.Context, live *fleetv1.Cluster, change map[string]any) error {
	metadata := change["metadata"].(map[string]any)
	metadata["uid"], metadata["resourceVersion"] = live.UID, live.ResourceVersion
	patch, err := json.Marshal(change)
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
