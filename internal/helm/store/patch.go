package store

import (
	"cmp"
	"context"
	"fmt"
	"reflect"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// operation is one of a JSON patch. A merge patch sends a whole list for one item, and the lists here have hundreds of
// them.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func jsonPatch(operations []operation) client.Patch {
	return client.RawPatch(types.JSONPatchType, []byte(plan.JSON(operations)))
}

// listChanges returns the operations that turn a list at a path into another. They are few if both have the same order,
// and right in any case.
func listChanges[T any](path string, have, want []T, order func(a, b T) int) (changes []operation) {
	for i, at := 0, 0; i < len(have) || at < len(want); {
		item := func() string { return fmt.Sprintf("%s/%d", path, at) }
		switch {
		case i < len(have) && at < len(want) && order(have[i], want[at]) == 0:
			if !reflect.DeepEqual(&have[i], &want[at]) {
				changes = append(changes, operation{Op: "replace", Path: item(), Value: want[at]})
			}
			i, at = i+1, at+1
		case i == len(have) || at < len(want) && order(want[at], have[i]) < 0:
			changes = append(changes, operation{Op: "add", Path: item(), Value: want[at]})
			at++
		default:
			changes = append(changes, operation{Op: "remove", Path: item()})
			i++
		}
	}
	return changes
}

// fieldChange returns the operation that changes a field; none if it stays.
func fieldChange(path string, have, want any) []operation {
	switch {
	case equality.Semantic.DeepEqual(have, want):
		return nil
	case plan.JSON(want) == "null":
		return []operation{{Op: "remove", Path: path}}
	default:
		return []operation{{Op: "add", Path: path, Value: want}}
	}
}

// mostChanges limits the changes of a list that are sent one by one. With more, the list is about as short, and each costs
// the API server a copy of the list.
const mostChanges = 100

// targetChanges returns a JSON patch if some targets differ, the rollout strategy, and nothing else.
func targetChanges(have, want *fleetv1.Bundle) client.Patch {
	rest := *want
	rest.Spec.Targets, rest.Spec.RolloutStrategy = have.Spec.Targets, have.Spec.RolloutStrategy
	if len(want.Spec.Targets) == 0 || len(have.Spec.Targets) == 0 || !equality.Semantic.DeepEqual(have, &rest) {
		return nil
	}
	changes := listChanges("/spec/targets", have.Spec.Targets, want.Spec.Targets, func(a, b fleetv1.BundleTarget) int { return cmp.Compare(a.ClusterName, b.ClusterName) })
	changes = append(changes, fieldChange("/spec/rolloutStrategy", have.Spec.RolloutStrategy, want.Spec.RolloutStrategy)...)
	if len(changes) == 0 || len(changes) > mostChanges {
		return nil
	}
	// The generation shows whether the targets have changed since the comparison; changes of the status do not matter.
	return jsonPatch(append([]operation{
		{Op: "test", Path: "/metadata/uid", Value: have.UID}, {Op: "test", Path: "/metadata/generation", Value: have.Generation},
	}, changes...))
}

// SetStatus writes the status of a HelmChartProxy. It returns a conflict if the matching Clusters may have changed meanwhile.
func (s *Store) SetStatus(ctx context.Context, have, want *addonsv1.HelmChartProxy) error {
	// If an index is wrong, the API server does not get to the conflict.
	return s.send(want, func(answer client.Object, patch client.Patch) error {
		return s.Status().Patch(ctx, answer, patch, client.FieldOwner(FieldManager))
	}, statusChanges(have, want), client.MergeFrom(have))
}

// statusChanges returns a JSON patch if at most a few of the matching Clusters differ, unless the list is the same and the
// rollout is not: a merge patch is computed from both objects with all Clusters.
func statusChanges(have, want *addonsv1.HelmChartProxy) client.Patch {
	was, is := have.Status, want.Status
	changes := listChanges("/status/matchingClusters", was.MatchingClusters, is.MatchingClusters, func(a, b corev1.ObjectReference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if len(was.MatchingClusters) == 0 || len(is.MatchingClusters) == 0 || len(changes) > mostChanges {
		return nil
	}
	switch {
	case len(changes) > 0: // The indexes are right in this version.
		changes = append([]operation{{Op: "add", Path: "/metadata/resourceVersion", Value: have.ResourceVersion}}, changes...)
	case !equality.Semantic.DeepEqual(was.Rollout, is.Rollout): // A merge patch keeps what a later version completed.
		return nil
	}
	changes = append(changes, fieldChange("/status/conditions", was.Conditions, is.Conditions)...)
	changes = append(changes, fieldChange("/status/observedGeneration", was.ObservedGeneration, is.ObservedGeneration)...)
	changes = append(changes, fieldChange("/status/rollout", was.Rollout, is.Rollout)...)
	return jsonPatch(changes)
}
