package admission

import (
	"context"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// ClassAccess is the validating webhook for Clusters that use a ClusterClass of another
// namespace. Such a Cluster receives the bundles of that namespace, and Cluster API does
// not check whether its author may have them: whoever names the class must be allowed to
// get it, or to use it where the FleetAddonConfig says so.
//
// The API server's match conditions let through only requests that set or change such a
// reference, so everything else costs nothing.
type ClassAccess struct {
	// Settings are those in force.
	Settings *settings.Reader
	// Reviewer creates SubjectAccessReviews. Their answers are not cached, because a revoked
	// permission must not linger.
	Reviewer client.Client
}

var _ admission.Handler = (*ClassAccess)(nil)

// Handle answers one admission request. If it cannot decide, it refuses.
func (c *ClassAccess) Handle(ctx context.Context, req admission.Request) admission.Response {
	cluster, err := parseCluster(req.Object.Raw)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	class := cluster.class(req.Namespace)
	if class.Name == "" || class.Namespace == req.Namespace {
		return admission.Allowed("")
	}
	if req.Operation == admissionv1.Update {
		old, err := parseCluster(req.OldObject.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if old.class(req.Namespace) == class {
			return admission.Allowed("")
		}
	}
	in, err := c.Settings.Current(ctx)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	policy, verb := settings.ClassPolicy(in.Config)
	if in.Invalid != nil {
		ctrl.LoggerFrom(ctx).Error(in.Invalid, "Enforcing the policy for classes of other namespaces because the settings are unusable")
		policy = addonsv1.CrossNamespaceClassEnforce
	}
	if policy == addonsv1.CrossNamespaceClassOff {
		return admission.Allowed("")
	}
	allowed, err := mayDo(ctx, c.Reviewer, req.UserInfo, authorizationv1.ResourceAttributes{
		Verb:      string(verb),
		Group:     clusterv1.GroupVersion.Group,
		Version:   clusterv1.GroupVersion.Version,
		Resource:  "clusterclasses",
		Namespace: class.Namespace,
		Name:      class.Name,
	})
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	if allowed {
		return admission.Allowed("")
	}
	message := fmt.Sprintf("user %q may not %s clusterclasses.%s %q in namespace %q: a Cluster of that class would receive the bundles of that namespace; "+
		"use a class of your own namespace, or ask for a Role there with verb %[2]s on resource clusterclasses",
		req.UserInfo.Username, verb, clusterv1.GroupVersion.Group, class.Name, class.Namespace)
	if policy == addonsv1.CrossNamespaceClassWarn {
		return admission.Allowed("").WithWarnings(message)
	}
	return admission.Denied(message)
}
