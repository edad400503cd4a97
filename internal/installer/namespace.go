package installer

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// account names the installer's ServiceAccount, and the RoleBinding in Fleet's namespace.
	account = "muster-installer"
	// roomRole names the installer's rights in Fleet's namespace. They are shipped as a ClusterRole,
	// because the namespace may not exist yet, and must not be uninstalled with the installer.
	roomRole = "muster-installer-fleet-namespace"
)

// room is Fleet's namespace, and the installer's rights there.
type room struct {
	client.Client
	live client.Reader
	// namespace is the installer's own. It is empty in a preview: a person has rights already, so
	// nothing is bound.
	namespace string
}

// find reports whether Fleet's namespace exists, and if so makes sure that the installer has its
// rights there.
func (r *room) find(ctx context.Context) (bool, error) {
	namespace := &corev1.Namespace{}
	there, err := read(ctx, r.live, types.NamespacedName{Name: FleetNamespace}, namespace)
	switch {
	case err != nil || !there:
		return false, err
	case !namespace.DeletionTimestamp.IsZero():
		return false, fmt.Errorf("namespace %s is being deleted", FleetNamespace)
	case r.namespace == "":
		return true, nil
	default:
		return true, r.enter(ctx)
	}
}

// make creates Fleet's namespace if it does not exist.
func (r *room) make(ctx context.Context) error {
	if there, err := r.find(ctx); err != nil || there {
		return err
	}
	// This is an apply, not a create, so that the API server checks RBAC with this name.
	namespace := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": FleetNamespace}}
	if err := applyAs(ctx, r.Client, namespace); err != nil {
		return fmt.Errorf("making Namespace %s: %w", FleetNamespace, err)
	}
	_, err := r.find(ctx)
	return err
}

// enter binds the shipped role to the installer's ServiceAccount, in Fleet's namespace.
func (r *room) enter(ctx context.Context) error {
	allowed := func(ctx context.Context) (bool, error) {
		return mayI(ctx, r.Client, authorizationv1.ResourceAttributes{Verb: "list", Version: "v1", Resource: "secrets", Namespace: FleetNamespace})
	}
	if has, err := allowed(ctx); err != nil || has {
		return err
	}
	binding := map[string]any{
		"apiVersion": rbacv1.SchemeGroupVersion.String(), "kind": "RoleBinding",
		"metadata": map[string]any{"namespace": FleetNamespace, "name": account},
		"roleRef":  map[string]any{"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": roomRole},
		"subjects": []any{map[string]any{"kind": rbacv1.ServiceAccountKind, "namespace": r.namespace, "name": account}},
	}
	if err := applyAs(ctx, r.Client, binding); err != nil {
		return fmt.Errorf("binding ClusterRole %s in Namespace %s: %w", roomRole, FleetNamespace, err)
	}
	// The API server notices a binding a moment later.
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, allowed); err != nil {
		return fmt.Errorf("waiting for the rights in Namespace %s: %w", FleetNamespace, err)
	}
	return nil
}

// mayI asks the API server what this program may do.
func mayI(ctx context.Context, c client.Client, attributes authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
	if err := c.Create(ctx, review, &client.CreateOptions{Raw: &metav1.CreateOptions{}}); err != nil {
		return false, fmt.Errorf("asking for rights: %w", err)
	}
	return review.Status.Allowed, nil
}
