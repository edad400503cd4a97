package registrar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/stamp"
)

// The words of the policy muster-registrar-secrets that say whose a Secret is.
const (
	refusesOthers       = "muster-registrar may touch only Secrets"
	refusesPredecessors = "muster-registrar may not change whose a Secret is"
)

// collected is how old a Cluster is by when the garbage collector has taken away what an earlier
// one of its name has left, if nothing keeps it from that.
const collected = time.Minute

// refusal returns what an error says of whose the Secret with the name of the manifest is; nil
// if it says nothing of that, but, for example, of a quota, a role or somebody's policy.
func (v *visit) refusal(err error) *verdict {
	var result verdict
	name, wait := stamp.ManifestSecret(v.cluster.Name), checkInterval
	if v.now.Sub(v.cluster.CreationTimestamp.Time) < collected {
		wait = pollInterval
	}
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusesPredecessors):
		result = waiting(reasonSecretTaken, fmt.Sprintf("Secret %q is still that of an earlier Cluster of this name; it is made again when the garbage collector has taken it away", name), wait)
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusesOthers), apierrors.IsInvalid(err) && isOfType(err):
		result = waiting(reasonSecretTaken, fmt.Sprintf("Secret %q is not Muster's and is left alone; delete or rename it", name), checkInterval)
	default:
		return nil
	}
	return &result
}

// isOfType reports whether the type is what is invalid: nobody can change that of a Secret.
func isOfType(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "type"
	})
}
