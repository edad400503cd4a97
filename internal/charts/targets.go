package charts

import (
	"context"
	"fmt"
	"reflect"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manyTargets is from how many targets on single ones are written: all of them are a list, which
// any other patch sends whole.
const manyTargets = 32

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// targetOperations returns what makes one list of targets the other, both in the order of their
// names; nothing if one is not, or too much is different.
func targetOperations(there, wanted []fleetv1.BundleTarget) []operation {
	var result []operation
	at, h := 0, 0
	path := func() string { return fmt.Sprintf("/spec/targets/%d", at) }
	remove := func() { result, h = append(result, operation{Op: "remove", Path: path()}), h+1 }
	for i := range wanted {
		want := &wanted[i]
		for h < len(there) && there[h].ClusterName < want.ClusterName {
			remove()
		}
		switch {
		case h == len(there) || there[h].ClusterName > want.ClusterName:
			result = append(result, operation{Op: "add", Path: path(), Value: want})
		default:
			if !reflect.DeepEqual(inJSON(there[h]), inJSON(want)) {
				result = append(result, operation{Op: "replace", Path: path(), Value: want})
			}
			h++
		}
		at++
	}
	for h < len(there) {
		remove()
	}
	if len(result) > len(wanted)/4 || !isSorted(there) || !isSorted(wanted) {
		return nil
	}
	return result
}

func isSorted(targets []fleetv1.BundleTarget) bool {
	for i := 1; i < len(targets); i++ {
		if targets[i-1].ClusterName >= targets[i].ClusterName {
			return false
		}
	}
	return true
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
