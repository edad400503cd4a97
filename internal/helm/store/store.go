// Package store writes the objects that Muster creates for HelmChartProxies: Bundles, values and credentials. It
// knows which objects the program may write and how the cache shows them, and makes no decisions.
package store

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
)

// FieldManager is the field manager of every write.
const FieldManager = "muster-helm"

// Store writes objects, and reads them from the cache.
type Store struct {
	reader
	pacer
	// Recorder records events on HelmChartProxies; nil for none.
	Recorder events.EventRecorder
	keyed
	// secrets maps the key of each Secret to the digest of the last write, for TrustInterval.
	secrets *cache.Expiring
}

// New returns a Store. Namespace is the program's own.
func New(c client.Client, live client.Reader, namespace string, clock clock.Clock) *Store {
	return &Store{
		reader: reader{Client: c, Live: live, checkIns: cache.NewExpiringWithClock(clock)}, pacer: newPacer(clock),
		keyed: keyed{client: c, live: live, namespace: namespace}, secrets: cache.NewExpiringWithClock(clock),
	}
}

// TakenError says that an object of another owner has the name that Muster needs.
type TakenError struct{ client.Object }

// Error returns the message.
func (e *TakenError) Error() string {
	return describe(e.Object) + " exists and is not Muster's; delete or rename it"
}

func describe(object client.Object) string {
	return fmt.Sprintf("%s %s", reflect.TypeOf(object).Elem().Name(), client.ObjectKeyFromObject(object))
}

// IsFor reports whether an object was made for a HelmChartProxy: it has the labels, and the annotation
// with the full name, as labels are shortened.
func IsFor(object client.Object, proxy plan.Key) bool {
	of, says := plan.ProxyOf(object)
	return says && of == proxy && kube.Contains(object.GetLabels(), plan.Labels(proxy))
}

// IsBehind reports whether an error only means that the cache is behind: a conflict, or the object exists already.
func IsBehind(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(its error) bool { return !IsBehind(its) })
	}
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// CreateOurs creates an object. If its name is taken by an object that is not ours according to isOurs, the error
// is a TakenError. If that object is ours, the cache is behind.
func (s *Store) CreateOurs(ctx context.Context, object client.Object, isOurs func(live client.Object) bool) error {
	switch err := s.Create(ctx, object, client.FieldOwner(FieldManager)); {
	case apierrors.IsAlreadyExists(err):
		live := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
		if getErr := s.Live.Get(ctx, client.ObjectKeyFromObject(object), live); getErr == nil && !isOurs(live) {
			return &TakenError{live}
		}
		return err
	case err != nil:
		return fmt.Errorf("creating %s: %w", describe(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Created", "object", describe(object))
	return nil
}

// CreateFor creates an object for a HelmChartProxy, which its annotation names.
func (s *Store) CreateFor(ctx context.Context, object client.Object) error {
	proxy, _ := plan.ProxyOf(object)
	return s.CreateOurs(ctx, object, func(live client.Object) bool { return IsFor(live, proxy) })
}

// CutError says that the cache has cut a Bundle. What is in it is not known, so nothing may be taken out of it.
type CutError struct{ client.Object }

// Error returns the message.
func (e *CutError) Error() string {
	return describe(e.Object) + " has far more targets, or other items, than Muster writes, so Muster leaves it as it is; remove what others have added to it"
}

// Remove deletes an object, unless it has been replaced since it was read. A Bundle that the cache has cut is a CutError.
func (s *Store) Remove(ctx context.Context, object client.Object) error {
	switch {
	case !object.GetDeletionTimestamp().IsZero():
		return nil
	case IsCut(object):
		return &CutError{object}
	}
	err := s.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s: %w", describe(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted", "object", describe(object))
	return nil
}

// Unchanged makes a patch fail if the object has changed meanwhile.
var Unchanged = client.MergeFromWithOptimisticLock{}

// Change updates an object to the wanted one, which is a changed copy of it.
func (s *Store) Change(ctx context.Context, have, want client.Object, options ...client.MergeFromOption) error {
	if equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	return s.noted(ctx, want, s.send(want, client.MergeFromWithOptions(have, options...), s.patch(ctx)))
}

// ChangeSpec updates the spec and labels of a HelmReleaseProxy, whatever else of it changes at the same time: no other writer
// decides about these. The wanted object keeps its version: it lacks what others have changed since.
func (s *Store) ChangeSpec(ctx context.Context, have, want *addonsv1.HelmReleaseProxy) error {
	changes := append(mapChanges("/metadata/labels", have.Labels, want.Labels), mapChanges("/spec", fieldsOf(have.Spec), fieldsOf(want.Spec))...)
	err := s.change(ctx, have, want, sameObject, changes)
	want.ResourceVersion = have.ResourceVersion
	return err
}

// change updates an object by a JSON patch, as amend does.
func (s *Store) change(ctx context.Context, have, want client.Object, hold tests, changes []operation) error {
	return s.noted(ctx, want, s.amend(ctx, have, want, hold, changes, s.patch(ctx)))
}

func (s *Store) noted(ctx context.Context, object client.Object, err error) error {
	if err != nil {
		return fmt.Errorf("changing %s: %w", describe(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Changed", "object", describe(object))
	s.Wrote(object)
	return nil
}

// sender sends a patch, and decodes the answer.
type sender func(answer client.Object, patch client.Patch) error

func (s *Store) patch(ctx context.Context) sender {
	return func(answer client.Object, patch client.Patch) error {
		return s.Patch(ctx, answer, patch, client.FieldOwner(FieldManager))
	}
}

// send sends a patch of an object. It sets the version and generation that result, and asks for no more of the answer: the
// API server would send the whole object, such as a Bundle with its chart.
func (s *Store) send(object client.Object, patch client.Patch, by sender) error {
	kind, err := s.GroupVersionKindFor(object)
	if err != nil {
		return err
	}
	data, err := patch.Data(object)
	if err != nil {
		return err
	}
	answer := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName()}}
	answer.SetGroupVersionKind(kind)
	if err := by(answer, client.RawPatch(patch.Type(), data)); err != nil {
		return err
	}
	object.SetResourceVersion(answer.ResourceVersion)
	object.SetGeneration(answer.Generation)
	return nil
}

// RemoveFinalizers removes finalizers, unless the object has changed meanwhile.
func (s *Store) RemoveFinalizers(ctx context.Context, object client.Object, finalizers ...string) error {
	want := object.DeepCopyObject().(client.Object)
	for _, its := range finalizers {
		controllerutil.RemoveFinalizer(want, its)
	}
	return client.IgnoreNotFound(s.Change(ctx, object, want, Unchanged))
}

// warn records an event on a HelmChartProxy, if there is one.
func (s *Store) warn(ctx context.Context, proxy plan.Key, reason, action, note string, args ...any) {
	if of, err := s.ChartProxy(ctx, proxy); err == nil && of != nil && s.Recorder != nil {
		s.Recorder.Eventf(of, nil, corev1.EventTypeWarning, reason, action, note, args...)
	}
}

// isOfOthers reports whether an update failed because the Secret is not Muster's: the type of a Secret is
// immutable, and the policy muster-helm-values refuses foreign Secrets.
func isOfOthers(err error) bool {
	const refusesOthers = "muster-helm may touch only"
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "type: Invalid value") ||
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusesOthers)
}
