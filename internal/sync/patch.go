package sync

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// patchStamp writes the stamp's keys onto a Cluster, and nothing if they are as
// wanted. It is a merge patch rather than an apply, because keys that the webhook
// set belong to whoever made the request, and an apply could not remove them. The
// resourceVersion keeps a stale view from overwriting a pin.
func patchStamp(ctx context.Context, c client.Client, store *apply.Store, cluster *clusterv1.Cluster, wanted stamp.Stamp) error {
	labels := stamp.Changes(cluster.Labels, wanted.LabelValues())
	annotations := stamp.Changes(cluster.Annotations, wanted.AnnotationValues())
	if labels == nil && annotations == nil {
		return nil
	}
	metadata := map[string]any{"resourceVersion": cluster.ResourceVersion}
	if labels != nil {
		metadata["labels"] = labels
	}
	if annotations != nil {
		metadata["annotations"] = annotations
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	if err := c.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager)); err != nil {
		return fmt.Errorf("stamping Cluster %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	ctrl.LoggerFrom(ctx).Info("Stamped", "kind", clusterv1.ClusterKind, "object", client.ObjectKeyFromObject(cluster).String(),
		"fleetCluster", wanted.Pin.ClusterName)
	if _, err := apply.TrimCached(cluster); err != nil {
		return err
	}
	return store.Wrote(cluster)
}

// removeLegacyFinalizer removes the finalizer that CAAPF puts on every Cluster and
// ClusterClass, and never takes off when it is gone.
func removeLegacyFinalizer(ctx context.Context, c client.Client, object client.Object) error {
	if !controllerutil.ContainsFinalizer(object, stamp.LegacyFinalizer) {
		return nil
	}
	before := object.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(object, stamp.LegacyFinalizer)
	err := c.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(desired.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer that CAAPF left: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Removed the finalizer that CAAPF left", "object", client.ObjectKeyFromObject(object).String())
	return nil
}
