package admission

import (
	"context"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
)

// ClassAccess is the validating webhook for Clusters that use a ClusterClass of another namespace. Such a Cluster
// receives the bundles of that namespace, and Cluster API does not check whether its author may have them. So the
// author must be allowed to get the class, or, if the FleetAddonConfig says so, to use it.
//
// The API server's match conditions let through only requests that set or change such a reference, so no other
// request calls this webhook.
type ClassAccess struct {
	// Settings reads the settings in force.
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
	if in == nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	policy, verb := settings.ClassPolicy(in.Config)
	verbs := []addonsv1.CrossNamespaceClassVerb{verb}
	if in.Invalid != nil {
		ctrl.LoggerFrom(ctx).Error(in.Invalid, "Enforcing the policy for classes of other namespaces because the settings are unusable")
		policy = addonsv1.CrossNamespaceClassEnforce
	}
	if in.IsUnknown() {
		verbs = []addonsv1.CrossNamespaceClassVerb{addonsv1.CrossNamespaceClassVerbGet, addonsv1.CrossNamespaceClassVerbUse}
	}
	if policy == addonsv1.CrossNamespaceClassOff {
		return admission.Allowed("")
	}
	for _, verb = range verbs {
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
		if !allowed {
			return mayNot(req.UserInfo.Username, policy, verb, class)
		}
	}
	return admission.Allowed("")
}

// mayNot answers the request of a user who lacks a verb on a class.
func mayNot(user string, policy addonsv1.CrossNamespaceClassPolicy, verb addonsv1.CrossNamespaceClassVerb, class types.NamespacedName) admission.Response {
	message := fmt.Sprintf("user %q may not %s clusterclasses.%s %q in namespace %q: a Cluster of that class would receive the bundles of that namespace; "+
		"use a class of your own namespace, or ask for a Role there with verb %[2]s on resource clusterclasses",
		user, verb, clusterv1.GroupVersion.Group, class.Name, class.Namespace)
	if policy == addonsv1.CrossNamespaceClassWarn {
		return admission.Allowed("").WithWarnings(message)
	}
	return admission.Denied(message)
}

// mayDo asks the API server whether a requester may do something. The question carries all attributes of the user.
func mayDo(ctx context.Context, reviewer client.Client, user authenticationv1.UserInfo, what authorizationv1.ResourceAttributes) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &what,
	}}
	// A SubjectAccessReview changes nothing, so mayDo may repeat it: a lost connection must not lead to a refusal. The pauses
	// add up to less than a second, because the user is waiting.
	if err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return ctx.Err() == nil && kube.IsPassing(err) }, func() error {
		return reviewer.Create(ctx, review)
	}); err != nil {
		return false, fmt.Errorf("asking whether %s may %s %s %s/%s: %w", user.Username, what.Verb, what.Resource, what.Namespace, what.Name, err)
	}
	return review.Status.Allowed, nil
}
