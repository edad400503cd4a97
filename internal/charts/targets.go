package charts

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// manyTargets is from how many elements of a list on single ones are written: any other patch sends
// the whole list.
const manyTargets = 32

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// operations returns what makes one list the other, both in the order of the names of what is in them;
// nothing if one is not, or too much is different.
func operations[T any](list string, name func(*T) string, there, wanted []T) []operation {
	var result []operation
	at, h := 0, 0
	path := func() string { return fmt.Sprintf("%s/%d", list, at) }
	remove := func() { result, h = append(result, operation{Op: "remove", Path: path()}), h+1 }
	for i := range wanted {
		want := &wanted[i]
		for h < len(there) && name(&there[h]) < name(want) {
			remove()
		}
		switch {
		case h == len(there) || name(&there[h]) > name(want):
			result = append(result, operation{Op: "add", Path: path(), Value: want})
		default:
			if inJSON(there[h]) != inJSON(want) {
				result = append(result, operation{Op: "replace", Path: path(), Value: want})
			}
			h++
		}
		at++
	}
	for h < len(there) {
		remove()
	}
	if len(result) > len(wanted)/4 || !isSorted(name, there) || !isSorted(name, wanted) {
		return nil
	}
	return result
}

func isSorted[T any](name func(*T) string, list []T) bool {
	for i := 1; i < len(list); i++ {
		if name(&list[i-1]) >= name(&list[i]) {
			return false
		}
	}
	return true
}

// targetOperations returns what makes one list of targets the other.
func targetOperations(there, wanted []fleetv1.BundleTarget) []operation {
	return operations("/spec/targets", func(its *fleetv1.BundleTarget) string { return its.ClusterName }, there, wanted)
}

// statusOperations returns what makes one status the other: nothing unless single Clusters of many come
// or go. They are in the order of their namespaces, and then of their names.
func statusOperations(there, wanted *addonsv1.HelmChartProxyStatus) []operation {
	if len(there.MatchingClusters) < manyTargets || len(there.Conditions) == 0 || there.ObservedGeneration == 0 {
		return nil
	}
	name := func(its *corev1.ObjectReference) string { return its.Namespace + "\x00" + its.Name }
	changes := operations("/status/matchingClusters", name, there.MatchingClusters, wanted.MatchingClusters)
	if len(changes) == 0 {
		return nil
	}
	return append(changes,
		operation{Op: "replace", Path: "/status/conditions", Value: wanted.Conditions},
		operation{Op: "replace", Path: "/status/observedGeneration", Value: wanted.ObservedGeneration})
}

func inJSON(value any) string { return string(toJSON(value)) }

// patchTargets changes single targets of a Bundle if nothing else is to change. It reports whether it has:
// if somebody has changed the Bundle meanwhile, it has not.
func (r *reconciler) patchTargets(ctx context.Context, want, have *fleetv1.Bundle, spec map[string]any) (done bool, err error) {
	if spec["targets"] == nil || len(spec) > 1 || len(have.Spec.Targets) < manyTargets || !isSameMeta(want, have) {
		return false, nil
	}
	changes := targetOperations(have.Spec.Targets, want.Spec.Targets)
	if len(changes) == 0 {
		return false, nil
	}
	// Its generation says whether it has the targets that were compared; its status plays no part.
	patch := toJSON(append([]operation{{Op: "test", Path: "/metadata/generation", Value: have.Generation}}, changes...))
	target := &fleetv1.Bundle{}
	target.Namespace, target.Name = have.Namespace, have.Name
	err = r.Patch(ctx, target, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(FieldManager))
	if apierrors.IsInvalid(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("changing %s: %w", describe(have), err)
	}
	ctrl.LoggerFrom(ctx).Info("Changed", "object", describe(have))
	return true, nil
}

// patchStatus writes the status of a HelmChartProxy: of many Clusters only those that come or go.
func (r *reconciler) patchStatus(ctx context.Context, before, after *addonsv1.HelmChartProxy) error {
	if changes := statusOperations(&before.Status, &after.Status); len(changes) > 0 {
		// Who has written it meanwhile may have written another list.
		changes = append([]operation{{Op: "replace", Path: "/metadata/resourceVersion", Value: before.ResourceVersion}}, changes...)
		patched := before.DeepCopy()
		err := r.Status().Patch(ctx, patched, client.RawPatch(types.JSONPatchType, toJSON(changes)), client.FieldOwner(FieldManager))
		if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
			return err
		}
	}
	return r.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(FieldManager))
}
