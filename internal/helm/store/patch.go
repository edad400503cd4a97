package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/go-openapi/jsonpointer"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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

// mapChanges returns the operations that turn a map at a path, which exists, into another one.
func mapChanges[V any](path string, have, want map[string]V) (changes []operation) {
	item := func(key string) string { return path + "/" + jsonpointer.Escape(key) }
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if _, isWanted := want[key]; !isWanted {
			changes = append(changes, operation{Op: "remove", Path: item(key)})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if last, isThere := have[key]; !isThere || !reflect.DeepEqual(last, want[key]) {
			changes = append(changes, operation{Op: "add", Path: item(key), Value: want[key]})
		}
	}
	return changes
}

// bundleChanges returns the operations that turn a Bundle into another one.
func bundleChanges(have, want *fleetv1.Bundle) []operation {
	changes := mapChanges("/metadata/labels", have.Labels, want.Labels)
	changes = append(changes, mapChanges("/metadata/annotations", have.Annotations, want.Annotations)...)
	was, is := have.Spec, want.Spec
	targets := listChanges("/spec/targets", was.Targets, is.Targets, func(a, b fleetv1.BundleTarget) int { return cmp.Compare(a.ClusterName, b.ClusterName) })
	if len(was.Targets) == 0 || len(is.Targets) == 0 || len(targets) > mostChanges {
		targets = fieldChange("/spec/targets", was.Targets, is.Targets)
	}
	was.Targets, is.Targets = nil, nil
	return append(append(changes, targets...), mapChanges("/spec", fieldsOf(was), fieldsOf(is))...)
}

// fieldsOf returns the fields of an object as JSON.
func fieldsOf(object any) (fields map[string]json.RawMessage) {
	utilruntime.Must(json.Unmarshal([]byte(plan.JSON(object)), &fields))
	return fields
}

// A JSON patch begins with tests of what the comparison depends on.
type tests func(of metav1.Object) []operation

// The UID shows whether an object was replaced, and the generation whether its spec has changed, whatever happens to its
// status. The version shows any change.
var (
	sameObject tests = func(of metav1.Object) []operation {
		return []operation{{Op: "test", Path: "/metadata/uid", Value: of.GetUID()}}
	}
	sameSpec tests = func(of metav1.Object) []operation {
		return append(sameObject(of), operation{Op: "test", Path: "/metadata/generation", Value: of.GetGeneration()})
	}
	sameVersion tests = func(of metav1.Object) []operation {
		return []operation{{Op: "test", Path: "/metadata/resourceVersion", Value: of.GetResourceVersion()}}
	}
)

// amend sends changes of an object as a JSON patch with tests. It returns a conflict if one of them fails now: the API server
// answers that as it does an invalid object, which is a refusal.
func (s *Store) amend(ctx context.Context, have, want client.Object, hold tests, changes []operation, by sender) error {
	err := s.send(want, jsonPatch(append(hold(have), changes...)), by)
	if !apierrors.IsInvalid(err) {
		return err
	}
	kind, kindErr := s.GroupVersionKindFor(have)
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(kind)
	if getErr := cmp.Or(kindErr, s.Live.Get(ctx, client.ObjectKeyFromObject(have), live)); getErr != nil {
		return getErr
	}
	if !reflect.DeepEqual(hold(live), hold(have)) {
		return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, have.GetName(), err)
	}
	return err
}

// UpdateBundle changes a Bundle as a function does. A change of the spec of a Bundle that the cache has cut is a CutError.
func (s *Store) UpdateBundle(ctx context.Context, have *fleetv1.Bundle, change func(*fleetv1.Bundle)) error {
	want, hold := have.DeepCopy(), sameSpec
	change(want)
	switch isSame := equality.Semantic.DeepEqual(have.Spec, want.Spec); {
	case equality.Semantic.DeepEqual(have, want):
		return nil
	case isSame:
		hold = sameObject // Others cannot keep it from being marked.
	case IsCut(have):
		return &CutError{have}
	}
	err := s.change(ctx, have, want, hold, bundleChanges(have, want))
	if err == nil {
		s.wrote(bundlePace(client.ObjectKeyFromObject(have)))
	}
	return client.IgnoreNotFound(err)
}

// SetStatus writes the status of a HelmChartProxy. It returns a conflict if the matching Clusters may have changed meanwhile.
func (s *Store) SetStatus(ctx context.Context, have, want *addonsv1.HelmChartProxy) error {
	send := func(answer client.Object, patch client.Patch) error {
		return s.Status().Patch(ctx, answer, patch, client.FieldOwner(FieldManager))
	}
	changes, isMerged := statusChanges(have, want)
	s.wrote(statusPace(client.ObjectKeyFromObject(have)))
	isSame := equality.Semantic.DeepEqual(have.Status.MatchingClusters, want.Status.MatchingClusters)
	switch {
	case !isMerged && isSame:
		return s.amend(ctx, have, want, sameObject, changes, send)
	case !isMerged:
		return s.amend(ctx, have, want, sameVersion, changes, send)
	case isSame:
		return s.send(want, client.MergeFrom(have), send)
	default: // There may be no list yet that a JSON patch could change.
		return s.send(want, client.MergeFromWithOptions(have, Unchanged), send)
	}
}

// statusChanges returns the operations that turn a status into another one. It returns that a merge patch is needed if there
// is no status yet, or if the matching Clusters are the same and the rollout is not: a merge patch keeps what a later version
// completed, but is computed from both objects with all Clusters.
func statusChanges(have, want *addonsv1.HelmChartProxy) (changes []operation, isMerged bool) {
	was, is := have.Status, want.Status
	changes = listChanges("/status/matchingClusters", was.MatchingClusters, is.MatchingClusters, func(a, b corev1.ObjectReference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if len(was.MatchingClusters) == 0 || len(changes) == 0 && !equality.Semantic.DeepEqual(was.Rollout, is.Rollout) {
		return nil, true
	}
	if len(is.MatchingClusters) == 0 || len(changes) > mostChanges {
		changes = fieldChange("/status/matchingClusters", was.MatchingClusters, is.MatchingClusters)
	}
	changes = append(changes, fieldChange("/status/conditions", was.Conditions, is.Conditions)...)
	changes = append(changes, fieldChange("/status/observedGeneration", was.ObservedGeneration, is.ObservedGeneration)...)
	changes = append(changes, fieldChange("/status/display", was.Display, is.Display)...)
	return append(changes, fieldChange("/status/rollout", was.Rollout, is.Rollout)...), false
}
