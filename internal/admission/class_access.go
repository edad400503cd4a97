package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// ClassAccess is the validating webhook for Clusters that use a ClusterClass of another
// namespace. Such a Cluster receives the bundles of that namespace, and Cluster API asks
// nobody whether its author may have them: whoever names the class must be allowed to
// get it.
//
// The API server's match conditions let through only requests that set or change such a
// reference, so everything else costs nothing.
type ClassAccess struct {
	// Reader is the cached FleetAddonConfig.
	Reader client.Reader
	// Reviewer creates SubjectAccessReviews. Their answers are not cached: a permission
	// that was taken away must not linger.
	Reviewer client.Client
}

var _ admission.Handler = (*ClassAccess)(nil)

// Handle answers one admission request. What cannot be decided is refused.
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
	current, err := currentSettings(ctx, c.Reader)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Enforcing the policy for classes of other namespaces, as settings cannot be read")
		current = settings.Default()
	}
	if current.CrossNamespaceClass == addonsv1.CrossNamespaceClassOff {
		return admission.Allowed("")
	}
	allowed, err := c.mayGet(ctx, req.UserInfo, class)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	if allowed {
		return admission.Allowed("")
	}
	message := fmt.Sprintf("user %q may not get clusterclasses.%s %q in namespace %q: a Cluster of that class would receive the bundles of that namespace; "+
		"use a class of your own namespace, or ask for a Role there with verb get on resource clusterclasses",
		req.UserInfo.Username, clusterv1.GroupVersion.Group, class.Name, class.Namespace)
	if current.CrossNamespaceClass == addonsv1.CrossNamespaceClassWarn {
		return admission.Allowed("").WithWarnings(message)
	}
	return admission.Denied(message)
}

// mayGet asks the API server whether the requester may get the class.
func (c *ClassAccess) mayGet(ctx context.Context, user authenticationv1.UserInfo, class types.NamespacedName) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   user.Username,
		UID:    user.UID,
		Groups: user.Groups,
		Extra:  extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb:      "get",
			Group:     clusterv1.GroupVersion.Group,
			Version:   clusterv1.GroupVersion.Version,
			Resource:  "clusterclasses",
			Namespace: class.Namespace,
			Name:      class.Name,
		},
	}}
	// A question changes nothing, so it may be asked again: a connection that was cut must
	// not refuse a Cluster.
	if err := retry.OnError(askAgain, func(err error) bool { return ctx.Err() == nil && isPassing(err) }, func() error {
		return c.Reviewer.Create(ctx, review)
	}); err != nil {
		return false, fmt.Errorf("asking whether %s may get ClusterClass %s: %w", user.Username, class, err)
	}
	return review.Status.Allowed, nil
}

// askAgain is how often and after what pauses: less than a second in all, as somebody waits.
var askAgain = wait.Backoff{Steps: 4, Duration: 50 * time.Millisecond, Factor: 3}

// isPassing reports whether an error says nothing about the question: the connection
// broke, or the API server has no time.
func isPassing(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err)
}
