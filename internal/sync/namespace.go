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
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// workspaceAnnotation lets Rancher turn an existing namespace into a Fleet workspace.
const workspaceAnnotation = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"

// namespaceReconciler keeps the workspace annotation on the Namespaces of claimed Clusters.
// Nothing waits for it: only Rancher reads it, and a refusal by a policy or RBAC is logged
// and otherwise ignored.
type namespaceReconciler struct {
	client.Client
	users    *users
	settings *settings.Reader
}

func (r *namespaceReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("namespace").
		WithOptions(controllerOptions(c.ClassConcurrency)).
		For(namespaceMetadata(), builder.OnlyMetadata).
		Watches(&clusterv1.Cluster{}, enqueue(c.events.namespaceOf), builder.WithPredicates(afterStart, specOrLabels)).
		Watches(&fleetv1.Cluster{}, enqueue(c.events.namespaceOf), builder.WithPredicates(afterStart, disowned)).
		Watches(&addonsv1.FleetAddonConfig{}, behind(c.events.allNamespaces), builder.WithPredicates(afterStart, settingsNews)).
		Complete(r)
}

// Reconcile sets or removes the annotation on one Namespace.
func (r *namespaceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	current, err := r.settings.Current(ctx)
	if err != nil || !current.Cluster.Enabled {
		return ctrl.Result{}, err
	}
	namespace := namespaceMetadata()
	if err := r.Get(ctx, req.NamespacedName, namespace); err != nil {
		r.users.forget(req.Name)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !namespace.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	_, has := namespace.Annotations[workspaceAnnotation]
	var value string
	switch made, err := r.isMade(ctx, current.Settings, namespace, has); {
	case err != nil:
		return ctrl.Result{}, err
	case made && !has:
		value = `"true"`
	case !made && has && stamp.IsManager(namespace):
		value = "null"
	default:
		return ctrl.Result{}, nil
	}
	// A merge patch, not an apply: an apply would recreate a Namespace that has just been
	// deleted.
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, workspaceAnnotation, value)
	err = r.Patch(ctx, namespace, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager))
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		ctrl.LoggerFrom(ctx).Info("The Namespace may not be annotated, so Rancher makes no workspace of it; nothing else depends on it",
			"namespace", req.Name, "reason", err.Error())
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// isMade reports whether the annotation should exist. Muster sets it for a maker. It keeps an existing
// one for a Cluster that keeps objects (isKeeper), or for the Fleet Cluster of an existing Cluster.
func (r *namespaceReconciler) isMade(ctx context.Context, in settings.Settings, namespace *metav1.PartialObjectMetadata, has bool) (bool, error) {
	asked := question{of: "annotation", namespace: namespace.Name}
	if has {
		asked.of = "annotated"
	}
	found, err := r.users.find(ctx, asked, func(cluster *clusterv1.Cluster, _ map[string]string) (bool, error) {
		return isMaker(in, cluster, namespace.Labels) || has && isKeeper(in, cluster, namespace.Labels), nil
	})
	if err != nil || found != nil || !has {
		return found != nil, err
	}
	return r.users.anyFleetCluster(ctx, namespace.Name, subset{}, func(cluster *fleetv1.Cluster) (bool, error) {
		if !stamp.IsOurs(cluster) {
			return false, nil
		}
		return r.users.hasCluster(ctx, in, cluster)
	})
}

// namespaceMetadata returns an empty Namespace, for reading and caching only its metadata.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}
