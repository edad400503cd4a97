package sync

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
	"github.com/muster-fleet/muster/internal/sync/observed"
)

// classReconciler removes CAAPF's finalizer from ClusterClasses; their groups are
// groupReconciler's.
type classReconciler struct{ client.Client }

func (r *classReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("clusterclass").
		WithOptions(controllerOptions(c.ClassConcurrency)).
		For(newClass(), builder.OnlyMetadata, builder.WithPredicates(watched(c.WatchFilter), observed.News)).
		Complete(r)
}

// Reconcile looks at one ClusterClass.
func (r *classReconciler) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	class, err := classMetadata(ctx, r.Client, req.NamespacedName)
	if err != nil || class == nil || !controllerutil.ContainsFinalizer(class, stamp.LegacyFinalizer) {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, removeLegacyFinalizer(ctx, r.Client, class.DeepCopy())
}

// removeLegacyFinalizer removes the finalizer that CAAPF puts on every Cluster and
// ClusterClass, and that outlives it. It changes the object that it is given.
func removeLegacyFinalizer(ctx context.Context, c client.Client, object client.Object) error {
	before := object.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(object, stamp.LegacyFinalizer)
	err := c.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(desired.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer that CAAPF left: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Removed the finalizer that CAAPF left", "object", client.ObjectKeyFromObject(object).String())
	return nil
}
