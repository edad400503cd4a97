package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	jsonpatch "github.com/evanphx/json-patch/v5"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
)

// takenError says that somebody else has an object of the name that one of ours is to have.
type takenError struct{ object client.Object }

// Error says so.
func (e *takenError) Error() string {
	return describe(e.object) + " exists and is not Muster's; delete or rename it"
}

// isMade reports whether an object has the labels of what is made for a HelmChartProxy, and says
// of no other that it was made for that.
func isMade(object client.Object, proxy plan.Key) bool {
	labels := object.GetLabels()
	for key, value := range plan.Labels(proxy) {
		if labels[key] != value {
			return false
		}
	}
	_, says := plan.ProxyOf(object)
	return !says || isFor(object, proxy)
}

// createOr creates an object. If it exists, it is read past the cache, which is behind or does not
// show it, into have, and left to the caller to change.
func (r *reconciler) createOr(ctx context.Context, proxy plan.Key, want, have client.Object) (exists bool, err error) {
	if err := r.create(ctx, want); !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return false, fmt.Errorf("reading %s: %w", describe(want), err)
	}
	if !isMade(have, proxy) {
		return false, &takenError{want}
	}
	return true, nil
}

// written returns an object as the API server has it: see plan.HelmOpKind.
func written(object client.Object) client.Object {
	if bundle, ok := object.(*fleetv1.Bundle); ok && plan.IsHelmOp(bundle) {
		return plan.HelmOpOf(bundle)
	}
	return object
}

// remove deletes an object of ours.
func (r *reconciler) remove(ctx context.Context, object client.Object) error {
	object = written(object)
	if !object.GetDeletionTimestamp().IsZero() {
		return nil
	}
	err := r.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s: %w", object, client.ObjectKeyFromObject(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted", "object", describe(object))
	return nil
}

func describe(object client.Object) string {
	return fmt.Sprintf("%s %s", reflect.TypeOf(written(object)).Elem().Name(), client.ObjectKeyFromObject(object))
}

// putConfigMap writes a ConfigMap with values. What the cache holds is short: see Trim.
func (r *reconciler) putConfigMap(ctx context.Context, proxy plan.Key, want, have client.Object) error {
	if have == nil {
		live := reflect.New(reflect.TypeOf(want).Elem()).Interface().(client.Object)
		if exists, err := r.createOr(ctx, proxy, want, live); err != nil || !exists {
			return err
		}
		have = live
	}
	if !isSameMeta(want, have) {
		if err := r.patch(ctx, have, toJSON(map[string]any{"metadata": metaOf(want, have)})); err != nil {
			return err
		}
	}
	if digestOfValues(want) == digestOfValues(have) {
		return nil
	}
	return r.patched(ctx, have, types.JSONPatchType, replaceData(want))
}

// replaceData returns the patch that makes the data of an object with values those of another, whichever
// keys it has: which these are, the cache does not know, and a merge would leave them.
func replaceData(want client.Object) []byte {
	return toJSON([]map[string]any{{"op": "add", "path": "/data", "value": want.(*corev1.ConfigMap).Data}})
}

// putBundle writes a Bundle: of an existing one, only what differs. It reports whether Fleet has taken
// over what is there now.
func (r *reconciler) putBundle(ctx context.Context, proxy plan.Key, want, have *fleetv1.Bundle) (taken bool, err error) {
	want.Spec.TargetCustomizationMode = fleetv1.TargetCustomizationModeFirstMatch // The API server's default.
	want.Annotations[digestAnnotation] = digestOf(want.Spec.Resources)
	if have == nil {
		if len(want.Spec.Resources) == 0 {
			return false, errors.New("the chart is missing")
		}
		have = &fleetv1.Bundle{}
		if exists, err := r.createOr(ctx, proxy, want, have); err != nil || !exists {
			return false, err
		}
	}
	if have, err = r.whole(ctx, have); err != nil {
		return false, err
	}
	resources := want.Spec.Resources
	if resources == nil { // The ones that are there are right.
		want.Annotations[digestAnnotation] = have.Annotations[digestAnnotation]
	}
	wanted, there := want.Spec, have.Spec
	wanted.Resources, there.Resources = nil, nil
	spec, err := difference(there, wanted)
	if err != nil {
		return false, err
	}
	if resources != nil && want.Annotations[digestAnnotation] != digestOf(have.Spec.Resources) {
		spec["resources"] = resources
	}
	taken = len(spec) == 0 && plan.IsTaken(have)
	if len(spec) == 0 && isSameMeta(want, have) {
		return taken, nil
	}
	if done, err := r.patchTargets(ctx, want, have, spec); done || err != nil {
		return taken, err
	}
	return taken, r.patch(ctx, have, toJSON(map[string]any{"metadata": metaOf(want, have), "spec": spec}))
}

// difference returns what makes one spec the other.
func difference(there, wanted any) (map[string]any, error) {
	patch, err := jsonpatch.CreateMergePatch(toJSON(there), toJSON(wanted))
	if err != nil {
		return nil, fmt.Errorf("comparing specs: %w", err)
	}
	spec := map[string]any{}
	return spec, json.Unmarshal(patch, &spec)
}

func (r *reconciler) create(ctx context.Context, object client.Object) error {
	if err := r.Create(ctx, object, client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("creating %s: %w", describe(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Created", "object", describe(object))
	return nil
}

func (r *reconciler) patch(ctx context.Context, have client.Object, patch []byte) error {
	return r.patched(ctx, have, types.MergePatchType, patch)
}

func (r *reconciler) patched(ctx context.Context, have client.Object, of types.PatchType, patch []byte) error {
	target := reflect.New(reflect.TypeOf(written(have)).Elem()).Interface().(client.Object)
	target.SetNamespace(have.GetNamespace())
	target.SetName(have.GetName())
	if err := r.Patch(ctx, target, client.RawPatch(of, patch), client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("changing %s: %w", describe(have), err)
	}
	ctrl.LoggerFrom(ctx).Info("Changed", "object", describe(have))
	return nil
}

// metaOf returns the metadata to write: if an object is to have no owner, its others stay.
func metaOf(want, have client.Object) map[string]any {
	meta := map[string]any{"labels": want.GetLabels(), "annotations": want.GetAnnotations()}
	if have.GetLabels()[fleetv1.HelmOpLabel] != "" { // Fleet deletes it with the HelmOp otherwise.
		labels := map[string]any{fleetv1.HelmOpLabel: nil, plan.AccessLabel: nil}
		for key, value := range want.GetLabels() {
			labels[key] = value
		}
		meta["labels"] = labels
	}
	switch owners := want.GetOwnerReferences(); {
	case len(owners) > 0:
		meta["ownerReferences"] = owners
	case isOwned(have):
		meta["ownerReferences"] = withoutProxies(have.GetOwnerReferences())
	}
	return meta
}

// isSameMeta reports whether an object has the labels, annotations and owners that it is to
// have; what others have added stays.
func isSameMeta(want, have client.Object) bool {
	contains := func(all, some map[string]string) bool {
		for key, value := range some {
			if its, found := all[key]; !found || its != value {
				return false
			}
		}
		return true
	}
	isOwnedAsWanted := !isOwned(have)
	if owners := want.GetOwnerReferences(); len(owners) > 0 {
		isOwnedAsWanted = reflect.DeepEqual(owners, have.GetOwnerReferences())
	}
	return isOwnedAsWanted && contains(have.GetLabels(), want.GetLabels()) && contains(have.GetAnnotations(), want.GetAnnotations())
}
