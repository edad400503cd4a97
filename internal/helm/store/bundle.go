package store

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
)

// UpdateBundle changes a Bundle as a function does.
func (s *Store) UpdateBundle(ctx context.Context, have *fleetv1.Bundle, change func(*fleetv1.Bundle)) error {
	if IsCut(have) { // The cached Bundle lacks content.
		live := &fleetv1.Bundle{}
		if err := s.Live.Get(ctx, client.ObjectKeyFromObject(have), live); err != nil {
			return client.IgnoreNotFound(err)
		}
		if proxy, _ := plan.ProxyOf(have); !IsFor(live, proxy) {
			return &TakenError{live}
		}
		have = live
	}
	want := have.DeepCopy()
	change(want)
	want = want.DeepCopy() // The answer is decoded into it, and it may have parts of a cached object now.
	if patch := targetChanges(have, want); patch != nil {
		// If the Bundle has changed meanwhile, the indexes are wrong.
		if err := s.patch(ctx, want, patch); !apierrors.IsInvalid(err) {
			return client.IgnoreNotFound(err)
		}
	}
	return client.IgnoreNotFound(s.Change(ctx, have, want))
}

// targetChanges returns a JSON patch if some targets differ, the rollout strategy, and nothing else: a merge patch would
// send all targets.
func targetChanges(have, want *fleetv1.Bundle) client.Patch {
	rest := *want
	rest.Spec.Targets, rest.Spec.RolloutStrategy = have.Spec.Targets, have.Spec.RolloutStrategy
	if len(want.Spec.Targets) != len(have.Spec.Targets) || !equality.Semantic.DeepEqual(have, &rest) {
		return nil
	}
	// The generation shows whether the targets have changed since the comparison; changes of the status do not matter.
	patch := []operation{{Op: "test", Path: "/metadata/generation", Value: have.Generation}}
	for i, target := range want.Spec.Targets {
		if target.ClusterName != have.Spec.Targets[i].ClusterName {
			return nil
		}
		if !equality.Semantic.DeepEqual(target, have.Spec.Targets[i]) {
			patch = append(patch, operation{Op: "replace", Path: fmt.Sprintf("/spec/targets/%d", i), Value: target})
		}
	}
	switch strategy := want.Spec.RolloutStrategy; {
	case equality.Semantic.DeepEqual(strategy, have.Spec.RolloutStrategy):
	case strategy == nil:
		patch = append(patch, operation{Op: "remove", Path: "/spec/rolloutStrategy"})
	default:
		patch = append(patch, operation{Op: "add", Path: "/spec/rolloutStrategy", Value: strategy})
	}
	if len(patch) == 1 {
		return nil
	}
	return jsonPatch(patch)
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func jsonPatch(operations []operation) client.Patch {
	return client.RawPatch(types.JSONPatchType, []byte(plan.JSON(operations)))
}
