package store

import (
	"cmp"
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/helm/plan"
)

// Bundle returns a Bundle from the cache; nil if there is none.
func (s *Store) Bundle(ctx context.Context, key plan.Key) (*fleetv1.Bundle, error) {
	bundle := &fleetv1.Bundle{}
	if err := s.Get(ctx, key, bundle, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading Bundle: %w", err)
	}
	return bundle, nil
}

// CreateBundle creates a Bundle.
func (s *Store) CreateBundle(ctx context.Context, want *fleetv1.Bundle) error {
	err := s.Create(ctx, want)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have := &fleetv1.Bundle{}
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return client.IgnoreNotFound(err)
	}
	if proxy, _ := plan.ProxyOf(want); !IsFor(have, proxy) {
		return &TakenError{want}
	}
	return err // The cache is behind.
}

// HoldsFiles reports whether a Bundle in the cache holds files with a digest.
func HoldsFiles(bundle *fleetv1.Bundle, digest string) bool { return filesDigest(bundle) == digest }

// UpdateBundle makes a Bundle the wanted one. Files are nil if it holds the right ones.
func (s *Store) UpdateBundle(ctx context.Context, have, want *fleetv1.Bundle, files []fleetv1.BundleResource) error {
	if IsCut(have) { // The cache cut content that another user added; it goes, too.
		live := &fleetv1.Bundle{}
		if err := s.Live.Get(ctx, client.ObjectKeyFromObject(have), live); err != nil {
			return client.IgnoreNotFound(err)
		}
		have = live
	}
	there, wanted := have.Spec, want.Spec
	there.Resources, wanted.Resources = nil, nil
	isSameMeta := contains(have.Labels, want.Labels) && contains(have.Annotations, want.Annotations)
	if files == nil && isSameMeta {
		if equality.Semantic.DeepEqual(there.Targets, wanted.Targets) {
			there.Targets, wanted.Targets = nil, nil
		} else if rest := there; func() bool {
			rest.Targets = wanted.Targets
			return equality.Semantic.DeepEqual(rest, wanted)
		}() {
			if done, err := s.patchTargets(ctx, have, there.Targets, wanted.Targets); done || err != nil {
				return err
			}
		}
	}
	spec, err := difference(there, wanted)
	if err != nil {
		return err
	}
	if files != nil {
		spec["resources"] = files
	} else if want.Spec.HelmOpOptions != nil && filesDigest(have) != "" {
		spec["resources"] = nil
	}
	if len(spec) == 0 && isSameMeta {
		return nil
	}
	return s.Merge(ctx, have, map[string]any{"metadata": map[string]any{"labels": want.Labels, "annotations": want.Annotations}, "spec": spec})
}

// Operation is one of a JSON patch.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patchTargets changes single targets: a merge patch would send the whole list. It reports false if the Bundle
// has changed meanwhile.
func (s *Store) patchTargets(ctx context.Context, have *fleetv1.Bundle, there, wanted []fleetv1.BundleTarget) (bool, error) {
	changes := ListChanges("/spec/targets", there, wanted, func(a, b *fleetv1.BundleTarget) int { return cmp.Compare(a.ClusterName, b.ClusterName) })
	if changes == nil {
		return false, nil
	}
	// The generation shows whether the targets have changed since the comparison; changes of the status do not matter.
	patch := append([]Operation{{Op: "test", Path: "/metadata/generation", Value: have.Generation}}, changes...)
	err := s.patch(ctx, have, types.JSONPatchType, patch)
	return err == nil || !apierrors.IsInvalid(err), client.IgnoreNotFound(err)
}

// ListChanges returns the operations that turn one sorted list into another; nil if there are so many that the
// whole list is smaller, or a list is empty.
func ListChanges[T any](path string, there, wanted []T, compare func(a, b *T) int) []Operation {
	var changes []Operation
	h := 0
	for i := 0; i < len(wanted) || h < len(there); {
		at, order := fmt.Sprintf("%s/%d", path, i), 0
		switch {
		case i == len(wanted):
			order = -1
		case h == len(there):
			order = 1
		default:
			order = compare(&there[h], &wanted[i])
		}
		switch {
		case order < 0:
			changes = append(changes, Operation{Op: "remove", Path: at})
			h++
			continue
		case order > 0:
			changes = append(changes, Operation{Op: "add", Path: at, Value: wanted[i]})
		default:
			if !equality.Semantic.DeepEqual(there[h], wanted[i]) {
				changes = append(changes, Operation{Op: "replace", Path: at, Value: wanted[i]})
			}
			h++
		}
		i++
	}
	if len(there) == 0 || len(wanted) == 0 || len(changes) > len(wanted)/2 {
		return nil
	}
	return changes
}
