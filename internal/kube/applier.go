// Package kube holds the access of Muster's programs to the API server: a small cache that is never older than the
// program's own writes, server-side apply only of objects that differ, paged lists, and the meaning of errors. It
// does not know the purpose of the objects.
package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// Result is the result of Applier.Apply.
type Result string

// The results of Apply.
const (
	Unchanged Result = "unchanged"
	Created   Result = "created"
	Updated   Result = "updated"
	Skipped   Result = "skipped" // it differs, but must not be changed
)

// Applier brings objects to their desired state.
type Applier struct {
	Client client.Client
	// Live reads past the cache.
	Live  client.Reader
	Store *Store
}

// Ensure creates or updates the object, unless it is being deleted or is not Muster's, and returns the
// UID of the resulting object; empty if there is none. If patch is false, an existing object stays as
// it is. The error is a *ForeignError if another program made an object of this name.
func (a *Applier) Ensure(ctx context.Context, want client.Object, patch bool) (types.UID, error) {
	have := emptyLike(want)
	found, err := a.Store.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case err != nil:
		return "", err
	case !found:
		have = nil
	case !have.GetDeletionTimestamp().IsZero():
		return have.GetUID(), nil // The event of its deletion enqueues it again.
	case !stamp.IsOurs(have):
		return "", &ForeignError{kind: kindOf(want), object: have}
	}
	written, _, err := a.Apply(ctx, want, have, patch)
	if IsAbsent(err) {
		return "", nil // The namespace is being deleted, and the object with it.
	}
	if err != nil {
		return "", err
	}
	return written.GetUID(), nil
}

// ForeignError means that an object that Muster did not make has the name that Muster needs. Muster
// leaves it unchanged.
type ForeignError struct {
	kind   string
	object client.Object
}

// UID returns the UID of the foreign object.
func (e *ForeignError) UID() types.UID { return e.object.GetUID() }

func (e *ForeignError) Error() string {
	var managers []string
	for _, entry := range e.object.GetManagedFields() {
		managers = append(managers, entry.Manager)
	}
	slices.Sort(managers)
	return fmt.Sprintf("%s %s is not Muster's (written by %s), so bundles for the ClusterClass may not reach the Cluster: delete or rename it, or hand it over with the annotation %s=true",
		e.kind, client.ObjectKeyFromObject(e.object), cmp.Or(strings.Join(slices.Compact(managers), ", "), "an unknown client"), stamp.AdoptAnnotation)
}

// IgnoreForeign returns nil for a ForeignError, and any other error unchanged.
func IgnoreForeign(err error) error {
	if foreign := (*ForeignError)(nil); errors.As(err, &foreign) {
		return nil
	}
	return err
}

// UID returns the UID of an object; empty if it does not exist.
func (a *Applier) UID(ctx context.Context, key client.ObjectKey, object client.Object) (types.UID, error) {
	found, err := a.Store.Get(ctx, key, object)
	if err != nil || !found {
		return "", err
	}
	return object.GetUID(), nil
}

// Patch applies a merge patch to an object and returns the result. It fails if the object has
// changed since it was read as seen. The change must contain metadata.
func (a *Applier) Patch(ctx context.Context, seen client.Object, change map[string]any) (client.Object, error) {
	metadata := change["metadata"].(map[string]any)
	metadata["uid"], metadata["resourceVersion"] = seen.GetUID(), seen.GetResourceVersion()
	patch, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	written := emptyLike(seen)
	if err := a.Client.Patch(ctx, written, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(stamp.FieldManager)); err != nil {
		return nil, fmt.Errorf("patching %s %s: %w", kindOf(seen), client.ObjectKeyFromObject(seen), err)
	}
	ctrl.LoggerFrom(ctx).Info("Patched", logKeyOf(seen), client.ObjectKeyFromObject(seen).String())
	return written, a.Store.Wrote(ctx, written)
}

// Apply creates or updates the object and returns the result. have is the live object, or nil if
// there is none. If patch is false, an existing object stays as it is. An unchanged object costs no
// request. If want is a part of the object (see desired.HashAnnotation), all that it does not name stays. The error
// wraps the API server's.
func (a *Applier) Apply(ctx context.Context, want, have client.Object, patch bool) (client.Object, Result, error) {
	written, result, err := a.apply(ctx, want, have, patch)
	if err != nil || have == nil || !patch || !slices.ContainsFunc(have.GetManagedFields(), isOfCAAPF) {
		return written, result, err
	}
	return written, Updated, a.dropManagersOfCAAPF(ctx, want)
}

func (a *Applier) apply(ctx context.Context, want, have client.Object, patch bool) (client.Object, Result, error) {
	result, write := Created, a.create
	content := want.GetAnnotations()[desired.HashAnnotation]
	isPart := content == ""
	if isPart {
		write = a.createPart
	}
	if have != nil {
		if isPart {
			want = withHashOf(have, want)
		}
		switch {
		case !Differs(want, have):
			return have, Unchanged, nil
		case !patch:
			return have, Skipped, nil
		}
		result, write = Updated, a.update
		if isPart {
			write = func(ctx context.Context, want client.Object) (client.Object, error) {
				return a.updatePart(ctx, want, have)
			}
		}
	}
	if isPart {
		fields, err := desired.Configuration(want)
		if err != nil {
			return nil, "", err
		}
		content = desired.Hash(fields)
	}
	var written client.Object
	err := a.Store.Try(want, content, func() (err error) {
		written, err = write(ctx, want)
		return err
	})
	metrics.Applied(kindOf(want), string(result), err)
	if err != nil {
		return nil, "", fmt.Errorf("applying %s %s: %w", kindOf(want), client.ObjectKeyFromObject(want), err)
	}
	ctrl.LoggerFrom(ctx).Info("Applied", logKeyOf(want), client.ObjectKeyFromObject(want).String(), "result", result)
	return written, result, nil
}

// create applies an object that the cache does not have. It requests only the metadata in return,
// because the rest is what it sent.
func (a *Applier) create(ctx context.Context, want client.Object) (client.Object, error) {
	answer := &metav1.PartialObjectMetadata{}
	answer.SetGroupVersionKind(want.GetObjectKind().GroupVersionKind())
	answer.Namespace, answer.Name = want.GetNamespace(), want.GetName()
	if err := a.send(ctx, want, answer); err != nil {
		return nil, err
	}
	written := ShallowCopy(want)
	reflect.ValueOf(written).Elem().FieldByName("ObjectMeta").Set(reflect.ValueOf(answer.ObjectMeta))
	if answer.Generation > 1 || Differs(want, written) {
		// The object existed already, perhaps with additions by others that are in the way.
		var err error
		if written, err = a.update(ctx, want); err != nil {
			return nil, err
		}
	}
	return written, a.Store.Created(ctx, written)
}

func (a *Applier) update(ctx context.Context, want client.Object) (client.Object, error) {
	whole := emptyLike(want)
	if err := a.send(ctx, want, whole); err != nil {
		return nil, err
	}
	// Trim replaces the fields that it changes, so the others may be shared.
	written := ShallowCopy(whole)
	if _, err := Trim(written); err != nil {
		return nil, err
	}
	patched := patched(whole, want)
	if Differs(want, written) || len(patched) > 0 {
		var err error
		if written, err = a.settle(ctx, want, whole, patched); err != nil {
			return nil, err
		}
	}
	return written, a.Store.Wrote(ctx, written)
}

// withHashOf returns a part of an object with the hash of the object as last applied, which stays.
func withHashOf(have, want client.Object) client.Object {
	hash, found := have.GetAnnotations()[desired.HashAnnotation]
	if !found {
		return want
	}
	want = want.DeepCopyObject().(client.Object)
	annotations := map[string]string{desired.HashAnnotation: hash}
	maps.Copy(annotations, want.GetAnnotations())
	want.SetAnnotations(annotations)
	return want
}

// createPart creates an object, and fails if it exists: an apply would take off everything that the part does not name.
func (a *Applier) createPart(ctx context.Context, want client.Object) (client.Object, error) {
	written := want.DeepCopyObject().(client.Object)
	if err := a.Client.Create(ctx, written, client.FieldOwner(stamp.FieldManager)); err != nil {
		return nil, err
	}
	return written, a.Store.Created(ctx, written)
}

// updatePart changes only the fields that differ, so that the rest is not even sent. It fails if the object has changed
// since it was read.
func (a *Applier) updatePart(ctx context.Context, want, have client.Object) (client.Object, error) {
	written, err := a.settle(ctx, want, have, unspared(have, want), client.MergeFromWithOptimisticLock{})
	if err != nil {
		return nil, err
	}
	return written, a.Store.Wrote(ctx, written)
}

// send applies an object and decodes the API server's answer into another one.
func (a *Applier) send(ctx context.Context, want, answer client.Object) error {
	fields, err := desired.Configuration(want)
	if err != nil {
		return err
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return a.Client.Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, body),
		client.FieldOwner(stamp.FieldManager), client.ForceOwnership)
}

// settle patches an object as settled says, removes the annotations that are named as gone, and returns the result: an apply
// leaves whatever it does not mention.
func (a *Applier) settle(ctx context.Context, want, have client.Object, gone []string, options ...client.MergeFromOption) (client.Object, error) {
	written := settled(want, have).DeepCopyObject().(client.Object) // The client decodes the answer into it, and want is shared.
	annotations := written.GetAnnotations()
	for _, key := range gone {
		delete(annotations, key)
	}
	written.SetAnnotations(annotations)
	return written, a.Client.Patch(ctx, written, client.MergeFromWithOptions(have, options...), client.FieldOwner(stamp.FieldManager))
}

// Delete deletes the object that was read; one that replaced it stays.
func (a *Applier) Delete(ctx context.Context, object client.Object) error {
	err := a.Client.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())})
	metrics.Applied(kindOf(object), "deleted", client.IgnoreNotFound(err))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s %s: %w", kindOf(object), client.ObjectKeyFromObject(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted", logKeyOf(object), client.ObjectKeyFromObject(object).String())
	return a.Store.Deleted(ctx, object)
}

// emptyLike returns an empty object of the same kind and name. The API server's answer is decoded into it: a decoder leaves
// whatever the answer does not have.
func emptyLike(object client.Object) client.Object {
	empty := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
	empty.GetObjectKind().SetGroupVersionKind(object.GetObjectKind().GroupVersionKind())
	empty.SetNamespace(object.GetNamespace())
	empty.SetName(object.GetName())
	return empty
}

// kindOf returns the kind. Objects from a cache carry none, but the Go type's name is the same.
func kindOf(object client.Object) string {
	return cmp.Or(object.GetObjectKind().GroupVersionKind().Kind, reflect.TypeOf(object).Elem().Name())
}

// logKeyOf returns the key by which a log names an object: its kind, as Cluster API's logs do it. Fleet's Cluster is
// fleetCluster: the logger of a reconcile has the CAPI Cluster as Cluster.
func logKeyOf(object client.Object) string {
	if _, isFleet := object.(*fleetv1.Cluster); isFleet {
		return "fleetCluster"
	}
	kind := kindOf(object)
	return strings.ToLower(kind[:1]) + kind[1:]
}
