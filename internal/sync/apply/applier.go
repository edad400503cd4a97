package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// Result says what Applier.Apply did.
type Result string

// The results of Apply.
const (
	Unchanged Result = "unchanged"
	Created   Result = "created"
	Updated   Result = "updated"
	Kept      Result = "kept" // it differs, and must not be changed
)

// Applier brings objects to their desired state.
type Applier struct {
	Client client.Client
	// Live reads past the cache.
	Live  client.Reader
	Store *Store
}

// Apply makes the object as wanted and returns it as it is then. Have is the live
// object, nil if there is none; if patch is false an existing object is left as it is.
// An unchanged object costs no request. The error is the API server's.
func (a *Applier) Apply(ctx context.Context, want, have client.Object, patch bool) (client.Object, Result, error) {
	result, write := Created, a.create
	if have != nil {
		switch {
		case !Differs(want, have):
			if patch && hasLegacyManager(have) {
				return have, Updated, a.dropLegacy(ctx, want)
			}
			return have, Unchanged, nil
		case !patch:
			return have, Kept, nil
		}
		result, write = Updated, a.update
	}
	written, err := write(ctx, want)
	metrics.Applied(kindOf(want), string(result), err)
	if err != nil {
		return nil, "", fmt.Errorf("applying %s %s: %w", kindOf(want), client.ObjectKeyFromObject(want), err)
	}
	ctrl.LoggerFrom(ctx).Info("Applied", "kind", kindOf(want), "object", client.ObjectKeyFromObject(want).String(), "result", result)
	if have != nil && hasLegacyManager(have) {
		return written, result, a.dropLegacy(ctx, want)
	}
	return written, result, nil
}

// create makes an object that was not seen. Of the answer only the metadata is asked for:
// the rest is what was sent.
func (a *Applier) create(ctx context.Context, want client.Object) (client.Object, error) {
	answer := &metav1.PartialObjectMetadata{}
	answer.SetGroupVersionKind(want.GetObjectKind().GroupVersionKind())
	answer.Namespace, answer.Name = want.GetNamespace(), want.GetName()
	if err := a.send(ctx, want, answer); err != nil {
		return nil, err
	}
	if answer.Generation > 1 || hasStrays(answer, want) {
		return a.update(ctx, want) // It was there after all: what others added may be in the way.
	}
	written := shallowCopy(want)
	reflect.ValueOf(written).Elem().FieldByName("ObjectMeta").Set(reflect.ValueOf(answer.ObjectMeta))
	if _, err := TrimCached(written); err != nil {
		return nil, err
	}
	return written, a.Store.Wrote(written)
}

func (a *Applier) update(ctx context.Context, want client.Object) (client.Object, error) {
	whole := reflect.New(reflect.TypeOf(want).Elem()).Interface().(client.Object)
	whole.SetNamespace(want.GetNamespace())
	whole.SetName(want.GetName())
	if err := a.send(ctx, want, whole); err != nil {
		return nil, err
	}
	written := shallowCopy(whole)
	if _, err := TrimCached(written); err != nil {
		return nil, err
	}
	if Differs(want, written) {
		if err := a.dropAdded(ctx, want, whole); err != nil {
			return nil, err
		}
		if _, err := TrimCached(whole); err != nil {
			return nil, err
		}
		written = whole
	}
	return written, a.Store.Wrote(written)
}

// shallowCopy returns a copy to trim: TrimCached replaces what it trims, so the rest may
// be shared.
func shallowCopy(object client.Object) client.Object {
	result := reflect.New(reflect.TypeOf(object).Elem())
	result.Elem().Set(reflect.ValueOf(object).Elem())
	return result.Interface().(client.Object)
}

// send applies an object; the API server's answer is decoded into another one.
func (a *Applier) send(ctx context.Context, want, answer client.Object) error {
	body, err := configuration(want)
	if err != nil {
		return err
	}
	return a.Client.Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, body),
		client.FieldOwner(desired.FieldManager), client.ForceOwnership)
}

// dropAdded removes what others added to what is wholly ours: template values,
// tolerations and environment, selectors, the keys of our own domain, by which nobody but
// us may steer anything, and owners of Cluster API's kinds. An apply leaves what it does
// not mention.
func (a *Applier) dropAdded(ctx context.Context, want, written client.Object) error {
	before := written.DeepCopyObject().(client.Object)
	written.SetLabels(withoutStrays(written.GetLabels(), want.GetLabels()))
	written.SetAnnotations(withoutStrays(written.GetAnnotations(), want.GetAnnotations()))
	written.SetOwnerReferences(ownersWithoutStrays(written, want))
	switch want := want.(type) {
	case *fleetv1.Cluster:
		written := written.(*fleetv1.Cluster)
		if want.Spec.TemplateValues != nil {
			written.Spec.TemplateValues = want.Spec.TemplateValues.DeepCopy()
		}
		written.Spec.AgentTolerations, written.Spec.AgentEnvVars = want.Spec.AgentTolerations, want.Spec.AgentEnvVars
	case *fleetv1.ClusterGroup:
		written.(*fleetv1.ClusterGroup).Spec.Selector = want.Spec.Selector
	case *fleetv1.BundleNamespaceMapping:
		// A mapping on its way out maps nothing, whoever has edited it.
		written := written.(*fleetv1.BundleNamespaceMapping)
		written.BundleSelector, written.NamespaceSelector = want.BundleSelector, want.NamespaceSelector
	}
	return a.Client.Patch(ctx, written, client.MergeFrom(before), client.FieldOwner(desired.FieldManager))
}

// Delete deletes the object as it was seen: one that was replaced meanwhile stays.
func (a *Applier) Delete(ctx context.Context, object client.Object) error {
	err := a.Client.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())})
	metrics.Applied(kindOf(object), "deleted", client.IgnoreNotFound(err))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s %s: %w", kindOf(object), client.ObjectKeyFromObject(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted", "kind", kindOf(object), "object", client.ObjectKeyFromObject(object).String())
	if len(object.GetFinalizers()) > 0 {
		return nil // It lives until its finalizers are gone, and the cache will tell.
	}
	return a.Store.Deleted(object)
}

// configuration returns the desired object as a server-side apply configuration in
// JSON: only the fields that are wanted.
func configuration(want client.Object) ([]byte, error) {
	// Template values are maps already, and most of it all.
	var values map[string]any
	if cluster, ok := want.(*fleetv1.Cluster); ok && cluster.Spec.TemplateValues != nil {
		values = cluster.Spec.TemplateValues.Data
		short := *cluster
		short.Spec.TemplateValues = nil
		want = &short
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	if spec, ok := fields["spec"].(map[string]any); ok && values != nil {
		spec["templateValues"] = values
	}
	return json.Marshal(fields)
}

// kindOf names the Go type, which is the kind: objects from a cache carry no TypeMeta.
func kindOf(object client.Object) string { return reflect.TypeOf(object).Elem().Name() }
