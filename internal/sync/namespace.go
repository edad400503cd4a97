package sync

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// workspaceAnnotation lets Rancher make a Fleet workspace of an existing namespace.
const workspaceAnnotation = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"

// namespaceReconciler keeps the workspace annotation on the Namespaces of claimed
// Clusters. Nothing waits for it: Rancher alone reads it, and a policy or RBAC that
// refuses it is logged and otherwise ignored.
type namespaceReconciler struct {
	client.Client
	users    users
	settings *settingsReader
}

// Reconcile sets or removes the annotation on one Namespace.
func (r *namespaceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	current, err := r.settings.current(ctx)
	if err != nil || !current.Cluster.Enabled {
		return ctrl.Result{}, err
	}
	namespace := namespaceMetadata()
	if err := r.Get(ctx, req.NamespacedName, namespace); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !namespace.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	claimed, err := r.hasClaimed(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}

	_, has := namespace.Annotations[workspaceAnnotation]
	var value string
	switch {
	case claimed && !has:
		value = `"true"`
	case !claimed && has && apply.IsManager(namespace):
		awaited, err := r.users.awaited(ctx, current, req.Name, func(*clusterv1.Cluster) bool { return true })
		if err != nil || awaited {
			return ctrl.Result{}, err
		}
		value = "null"
	default:
		return ctrl.Result{}, nil
	}
	// A merge patch, not an apply: an apply would create a Namespace that has just gone.
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, workspaceAnnotation, value)
	err = r.Patch(ctx, namespace, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager))
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		ctrl.LoggerFrom(ctx).Info("The Namespace may not be annotated, so Rancher makes no workspace of it; nothing else depends on it",
			"namespace", req.Name, "reason", err.Error())
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

func (r *namespaceReconciler) hasClaimed(ctx context.Context, namespace string) (bool, error) {
	var clusters clusterv1.ClusterList
	if err := r.List(ctx, &clusters, client.InNamespace(namespace), client.MatchingFields{byClaim: "true"},
		client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing Clusters: %w", err)
	}
	return len(clusters.Items) > 0, nil
}

// namespaceMetadata returns an empty Namespace of which only metadata is read and cached.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}
