package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mayDo asks the API server whether a requester, with all attributes of that user, may do
// something.
func mayDo(ctx context.Context, reviewer client.Client, user authenticationv1.UserInfo, what authorizationv1.ResourceAttributes) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &what,
	}}
	// A question changes nothing, so it may be asked again: a lost connection must not lead
	// to a refusal.
	if err := retry.OnError(askAgain, func(err error) bool { return ctx.Err() == nil && isPassing(err) }, func() error {
		return reviewer.Create(ctx, review)
	}); err != nil {
		return false, fmt.Errorf("asking whether %s may %s %s %s/%s: %w", user.Username, what.Verb, what.Resource, what.Namespace, what.Name, err)
	}
	return review.Status.Allowed, nil
}

// askAgain says how often, and after what pauses: less than a second in all, as the
// requester is waiting.
var askAgain = wait.Backoff{Steps: 4, Duration: 50 * time.Millisecond, Factor: 3}

// isPassing reports whether an error says nothing about the question: the connection
// broke, or the API server is busy.
func isPassing(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err)
}
