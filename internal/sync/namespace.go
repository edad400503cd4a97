package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
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
	current, usable, err := r.settings.current(ctx)
	if err != nil || !usable || !current.Cluster.Enabled {
		return ctrl.Result{}, err
	}
	namespace := namespaceMetadata()
	if err := r.Get(ctx, req.NamespacedName, namespace); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !namespace.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	_, has := namespace.Annotations[workspaceAnnotation]
	var value string
	switch made, err := r.isMade(ctx, current, namespace, has); {
	case err != nil:
		return ctrl.Result{}, err
	case made && !has:
		value = `"true"`
	case !made && has && stamp.IsManager(namespace):
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

// isMade reports whether the annotation is to be there: a maker makes it, and a keeper,
// or a Fleet Cluster of a Cluster that exists, keeps it.
func (r *namespaceReconciler) isMade(ctx context.Context, in settings.Settings, namespace *metav1.PartialObjectMetadata, has bool) (bool, error) {
	found, err := r.users.find(ctx, namespace.Name, nil, func(cluster *clusterv1.Cluster, _ map[string]string) (bool, error) {
		return isMaker(in, cluster, namespace.Labels) || has && isKeeper(in, cluster, namespace.Labels), nil
	})
	if err != nil || found != nil || !has {
		return found != nil, err
	}
	var fleetClusters fleetv1.ClusterList
	if err := r.List(ctx, &fleetClusters, client.InNamespace(namespace.Name), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	for i := range fleetClusters.Items {
		if !stamp.IsOurs(&fleetClusters.Items[i]) {
			continue
		}
		if exists, err := r.users.hasCluster(ctx, in, &fleetClusters.Items[i]); err != nil || exists {
			return exists, err
		}
	}
	return false, nil
}

// namespaceMetadata returns an empty Namespace of which only metadata is read and cached.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}
