package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// hasLegacyManager recognizes the field managers that CAAPF used beside the one we share: one
// per Cluster on groups and mappings that several Clusters use, each with an owner reference
// of its own. Left alone they hold on to what is no longer wanted.
func hasLegacyManager(object client.Object) bool {
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return stamp.IsLegacyManager(entry.Manager)
	})
}

// dropLegacy removes CAAPF's per-Cluster managers from an object that we have applied, and
// the owner references to Clusters that only they wanted. It costs one read and one write,
// once in an object's life.
func (a *Applier) dropLegacy(ctx context.Context, want client.Object) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(want.GetObjectKind().GroupVersionKind())
	if err := a.Live.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	managed := slices.DeleteFunc(slices.Clone(live.ManagedFields), func(entry metav1.ManagedFieldsEntry) bool {
		return stamp.IsLegacyManager(entry.Manager)
	})
	owners := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(owner metav1.OwnerReference) bool {
		return stamp.IsCluster(owner) && !slices.ContainsFunc(want.GetOwnerReferences(),
			func(wanted metav1.OwnerReference) bool { return wanted.UID == owner.UID })
	})
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": live.ResourceVersion, "managedFields": managed, "ownerReferences": owners,
	}})
	if err != nil {
		return err
	}
	if err := a.Client.Patch(ctx, live, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("taking CAAPF's field managers off %s %s: %w", kindOf(want), client.ObjectKeyFromObject(want), err))
	}
	ctrl.LoggerFrom(ctx).Info("Took CAAPF's field managers off", "kind", kindOf(want), "object", client.ObjectKeyFromObject(want).String())
	return nil
}
