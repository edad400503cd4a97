// Package store writes the objects that Muster creates for HelmChartProxies: Bundles, values and credentials. It
// knows which objects the program may write and how the cache shows them, and makes no decisions.
package store

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
)

// FieldManager is the field manager of every write.
const FieldManager = "muster-helm"

// Store writes objects, and reads them from the cache.
type Store struct {
	client.Client
	// Live reads past the cache.
	Live client.Reader
	// Recorder records events on HelmChartProxies; nil for none.
	Recorder events.EventRecorder
	keyed
	// secrets maps the key of each Secret to the digest of the last write, for SecretInterval.
	secrets *cache.Expiring
	// checkIns maps the UID of each Fleet Cluster to the time of its agent's last check-in, for LastSeenInterval.
	checkIns *cache.Expiring
	// paced maps the key of each object that was written less than pace ago to the end of that time, and that of each
	// HelmReleaseProxy to the version that was written last, for kube.Lag.
	paced *cache.Expiring
	// waits are the delays before those look again who wait, without an event, for another reconcile to finish. That may
	// take long: a policy may refuse its write.
	waits *flowcontrol.Backoff
	clock clock.Clock
}

// New returns a Store. Namespace is the program's own.
func New(c client.Client, live client.Reader, namespace string, clock clock.Clock) *Store {
	waits := flowcontrol.NewBackOff(BehindInterval, longestWait)
	waits.Clock = clock
	return &Store{
		Client: c, Live: live, keyed: keyed{client: c, live: live, namespace: namespace}, clock: clock,
		secrets: cache.NewExpiringWithClock(clock), checkIns: cache.NewExpiringWithClock(clock), paced: cache.NewExpiringWithClock(clock),
		waits: waits,
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

// BehindInterval is the delay before the next reconcile if the cache is behind a recent write.
const BehindInterval = time.Second

// longestWait is the longest delay that UntilLook returns.
const longestWait = time.Minute

// UntilLook returns the delay before the next look of who waits for another reconcile. It grows with each look, and not with
// events that come in between.
func (s *Store) UntilLook(id string) time.Duration {
	if s.MayLook(id) {
		s.waits.Next(id, s.clock.Now())
	}
	return s.waits.Get(id)
}

// MayLook reports whether the delay of the last UntilLook is over.
func (s *Store) MayLook(id string) bool { return !s.waits.IsInBackOffSinceUpdate(id, s.clock.Now()) }

// ForgetLook lets the delays begin anew.
func (s *Store) ForgetLook(id string) { s.waits.Reset(id) }

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

// ChangeSpec updates the spec and labels of a HelmReleaseProxy, whatever else of it changes at the same time: nobody else decides
// about these.
func (s *Store) ChangeSpec(ctx context.Context, have, want *addonsv1.HelmReleaseProxy) error {
	changes := append(mapChanges("/metadata/labels", have.Labels, want.Labels), mapChanges("/spec", fieldsOf(have.Spec), fieldsOf(want.Spec))...)
	return s.change(ctx, have, want, sameObject, changes)
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

// read reads an object from the cache; nil if there is none.
func read[T client.Object](ctx context.Context, s *Store, key plan.Key, object T) (T, error) {
	var none T
	if err := s.Get(ctx, key, object, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		return none, nil
	} else if err != nil {
		return none, fmt.Errorf("reading %T %s: %w", object, key, err)
	}
	return object, nil
}

// ChartProxy returns a copy of a HelmChartProxy from the cache, without the Clusters in its status: there may be thousands,
// and each release reads it. It returns nil if there is none.
func (s *Store) ChartProxy(ctx context.Context, key plan.Key) (*addonsv1.HelmChartProxy, error) {
	cached, err := read(ctx, s, key, &addonsv1.HelmChartProxy{})
	if cached == nil {
		return nil, err
	}
	its := *cached
	its.Status.MatchingClusters = nil
	return its.DeepCopy(), nil
}

// Bundle returns a Bundle from the cache; nil if there is none.
func (s *Store) Bundle(ctx context.Context, key plan.Key) (*fleetv1.Bundle, error) {
	return read(ctx, s, key, &fleetv1.Bundle{})
}

// FleetCluster returns the metadata of a Fleet Cluster from the cache; nil if there is none.
func (s *Store) FleetCluster(ctx context.Context, key plan.Key) (*metav1.PartialObjectMetadata, error) {
	return read(ctx, s, key, FleetClusterMetadata())
}

// LastSeenInterval is how often LastSeen reads a Fleet Cluster.
const LastSeenInterval = time.Minute

// LastSeen returns when the agent of a Fleet Cluster checked in last; zero if Fleet has not noted that. Check-ins trigger
// no event: the cache has only the metadata of Fleet Clusters.
func (s *Store) LastSeen(ctx context.Context, key plan.Key) (time.Time, error) {
	cached, err := s.FleetCluster(ctx, key)
	if err != nil || cached == nil {
		return time.Time{}, err
	}
	if seen, found := s.checkIns.Get(cached.UID); found {
		return seen.(time.Time), nil
	}
	fleet := &fleetv1.Cluster{}
	if err := s.Live.Get(ctx, key, fleet); client.IgnoreNotFound(err) != nil {
		return time.Time{}, fmt.Errorf("reading Fleet Cluster %s: %w", key, err)
	}
	seen := fleet.Status.Agent.LastSeen.Time
	s.checkIns.Set(fleet.UID, seen, LastSeenInterval)
	return seen, nil
}

// IsOwnFleetCluster reports whether a Fleet Cluster exists and belongs to a Cluster.
func (s *Store) IsOwnFleetCluster(ctx context.Context, cluster *clusterv1.Cluster, name string) (bool, error) {
	fleet, err := s.FleetCluster(ctx, plan.Key{Namespace: cluster.Namespace, Name: name})
	if err != nil || fleet == nil {
		return false, err
	}
	var clusters clusterv1.ClusterList
	relation, _ := stamp.RelationOf(fleet, cluster, func(name string, uid types.UID) bool {
		if clusters.Items == nil { // Needed only for Fleet Clusters with several owners.
			err = s.List(ctx, &clusters, client.InNamespace(cluster.Namespace), client.UnsafeDisableDeepCopy)
		}
		for i := range clusters.Items {
			if its := &clusters.Items[i]; (name == "" || its.Name == name) && (uid == "" || its.UID == uid) {
				return true
			}
		}
		return false
	})
	return relation == stamp.Own && stamp.IsOurs(fleet), err
}

// ClusterOf returns the Cluster that a Fleet Cluster may be of.
func ClusterOf(fleet client.Object) plan.Key {
	return plan.Key{Namespace: fleet.GetNamespace(), Name: cmp.Or(stamp.OriginOf(fleet).Name, fleet.GetName())}
}

// FleetClusterMetadata returns an empty Fleet Cluster, of which only the metadata is read.
func FleetClusterMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Cluster"}}
}

// warn records an event on a HelmChartProxy, if there is one.
func (s *Store) warn(ctx context.Context, proxy plan.Key, reason, action, note string, args ...any) {
	if of, err := s.ChartProxy(ctx, proxy); err == nil && of != nil && s.Recorder != nil {
		s.Recorder.Eventf(of, nil, corev1.EventTypeWarning, reason, action, note, args...)
	}
}

// LiveFleetCluster returns the metadata of a Fleet Cluster, nil if there is none, and whether it is released: it lives on
// without its Cluster, which is being moved to another management cluster, or was. It reads past the cache, which may show
// that a Cluster is gone before it shows that its Fleet Cluster was released: Fleet would uninstall the release from a
// cluster that lives on.
func (s *Store) LiveFleetCluster(ctx context.Context, key plan.Key) (fleet *metav1.PartialObjectMetadata, isReleased bool, err error) {
	fleet = FleetClusterMetadata()
	if err := s.Live.Get(ctx, key, fleet); apierrors.IsNotFound(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("reading Fleet Cluster %s: %w", key, err)
	}
	return fleet, fleet.Annotations[stamp.ReleasedAnnotation] == "true" && stamp.IsOurs(fleet), nil
}

// Deployment returns the BundleDeployment of a Bundle for a Fleet Cluster; nil if there is none. Only Fleet and
// the agent write to its namespace.
func (s *Store) Deployment(ctx context.Context, bundle plan.Key, fleetCluster string) (*fleetv1.BundleDeployment, error) {
	key := plan.Key{Namespace: stamp.FleetNamespace(bundle.Namespace, fleetCluster), Name: bundle.Name}
	deployment, err := read(ctx, s, key, &fleetv1.BundleDeployment{})
	if err != nil || deployment == nil {
		return nil, err
	}
	// Fleet shortens long names, so another Fleet Cluster may have the same namespace.
	if its := deployment.Labels[fleetv1.ClusterNamespaceLabel]; its != "" && its != bundle.Namespace {
		return nil, nil
	}
	return deployment, nil
}

// isOfOthers reports whether an update failed because the Secret is not Muster's: the type of a Secret is
// immutable, and the policy muster-helm-values refuses foreign Secrets.
func isOfOthers(err error) bool {
	const refusesOthers = "muster-helm may touch only"
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "type: Invalid value") ||
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusesOthers)
}
