package kube

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// This file removes what CAAPF, Muster's predecessor, has left on the objects that Muster adopts. To end the migration from
// CAAPF, delete it with its three calls.

// FinalizerOfCAAPF is what CAAPF puts on every Cluster and ClusterClass, and leaves there.
const FinalizerOfCAAPF = stamp.Domain

// RemoveFinalizerOfCAAPF removes CAAPF's finalizer, and returns the object as it is then.
func RemoveFinalizerOfCAAPF[T client.Object](ctx context.Context, a *Applier, object T) (T, error) {
	if !slices.Contains(object.GetFinalizers(), FinalizerOfCAAPF) {
		return object, nil
	}
	others := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(finalizer string) bool { return finalizer == FinalizerOfCAAPF })
	written, err := a.Patch(ctx, object, map[string]any{"metadata": map[string]any{"finalizers": others}})
	if err != nil {
		return object, client.IgnoreNotFound(fmt.Errorf("removing the finalizer that CAAPF left: %w", err))
	}
	return written.(T), nil
}

// ClassesOfCAAPF removes CAAPF's finalizer from ClusterClasses.
type ClassesOfCAAPF struct{ *Applier }

// Reconcile reconciles one ClusterClass.
func (r ClassesOfCAAPF) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	class := &desired.Class{}
	class.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind))
	found, err := r.Store.Get(ctx, req.NamespacedName, class)
	if found {
		_, err = RemoveFinalizerOfCAAPF(ctx, r.Applier, class)
	}
	return ctrl.Result{}, err
}

// isOfCAAPF recognizes field managers of CAAPF other than the one that Muster shares: one for each Cluster on groups and
// mappings that several Clusters use, each with its own owner reference. They would keep fields that are no longer wanted.
func isOfCAAPF(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager != stamp.FieldManager && stamp.IsManagerName(entry.Manager)
}

// dropManagersOfCAAPF removes these managers from an applied object, with the owner references to Clusters and the labels by
// which a tool deletes that only they wanted. It costs one read and one write, once in an object's life.
func (a *Applier) dropManagersOfCAAPF(ctx context.Context, want client.Object) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(want.GetObjectKind().GroupVersionKind())
	if err := a.Live.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	_, err := a.Patch(ctx, live, map[string]any{"metadata": map[string]any{
		"managedFields": slices.DeleteFunc(slices.Clone(live.ManagedFields), isOfCAAPF),
		"ownerReferences": slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(owner metav1.OwnerReference) bool {
			return stamp.IsCluster(owner) && wantedOwner(owner, want) == nil
		}),
		"labels": pruningLabelsOfCAAPF(live),
	}})
	return client.IgnoreNotFound(err)
}

// pruningLabelsOfCAAPF removes, in a merge patch, the labels by which a tool deletes the object and that only CAAPF has written.
func pruningLabelsOfCAAPF(live client.Object) map[string]any {
	changes, others := map[string]any{}, setByOthers(live)
	for key := range live.GetLabels() {
		if desired.IsPrunedBy(key) && !others[key] {
			changes[key] = nil
		}
	}
	return changes
}
