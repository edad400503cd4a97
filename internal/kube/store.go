package kube

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Lag is how long a write is remembered that the cache has not shown. A cache that lags longer has lost its
// watch, and after its relist it is right; after a restore of etcd, it may never show the write.
const Lag = 20 * time.Second

// Store reads objects from the cache, but never older than those written through it. Otherwise the event
// of a first write would cause a second.
type Store struct {
	reader client.Reader
	scheme *runtime.Scheme
	now    func() time.Time

	mu     sync.Mutex
	writes map[storeKey]write
	// gone has objects that were deleted while the Store remembered their last write. In between, the Store
	// returned them as existing.
	gone []client.Object
	// refused are the last writes that were too large. A restart costs one more try of each.
	refused map[storeKey]refusal
}

// TooLargeInterval is how often a write that is refused as too large is tried with the same content: each try costs the
// API server seconds.
const TooLargeInterval = time.Hour

// refusal is a write that was refused as too large.
type refusal struct {
	content string // its hash
	err     error
	expires time.Time
}

type storeKey struct {
	schema.GroupKind
	types.NamespacedName
}

type write struct {
	object client.Object // as the cache would show it
	// created means that the cache may never have shown the object.
	created, deleted bool
	expires          time.Time
}

// NewStore returns a Store over a cached reader.
func NewStore(reader client.Reader, scheme *runtime.Scheme) *Store {
	return &Store{reader: reader, scheme: scheme, now: time.Now, writes: map[storeKey]write{}, refused: map[storeKey]refusal{}}
}

// Get reads an object, read-only, and reports whether it exists. The result may be older than the API
// server's, but not older than Muster's own writes.
func (s *Store) Get(ctx context.Context, key client.ObjectKey, object client.Object) (bool, error) {
	storeKey, err := s.key(object, key)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	_, wrote := s.writes[storeKey]
	s.mu.Unlock()
	err = s.reader.Get(ctx, key, object, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	found := err == nil

	s.mu.Lock()
	last, ok := s.writes[storeKey]
	if wrote && !ok { // Its event came after the read, so the cache has caught up.
		s.mu.Unlock()
		return s.Get(ctx, key, object)
	}
	defer s.mu.Unlock()
	if !ok {
		return found, nil
	}
	if found && caughtUp(object, last) {
		delete(s.writes, storeKey)
		return found, nil
	}
	switch {
	case !found && !last.created && !last.deleted:
		// The cache had the object, and no longer has it: the event of its deletion came before the answer
		// to the write.
		delete(s.writes, storeKey)
		return false, nil
	case s.now().After(last.expires):
		return found, nil // Missed reports it, and forgets it.
	case last.deleted:
		return false, nil
	}
	reflect.ValueOf(object).Elem().Set(reflect.ValueOf(last.object).Elem())
	return true, nil
}

// caughtUp reports whether the cache is at least as new as the write.
func caughtUp(cached client.Object, last write) bool {
	if last.deleted {
		return cached.GetUID() != last.object.GetUID()
	}
	return !IsOlder(cached, last.object.GetResourceVersion())
}

// IsOlder reports whether the state of an object is from before a resourceVersion of the same resource.
func IsOlder(cached client.Object, version string) bool {
	order, err := resourceversion.CompareResourceVersion(cached.GetResourceVersion(), version)
	return err == nil && order < 0
}

// Wrote trims an updated object, as the API server returned it, in place. The Store remembers it until
// the cache is as new.
func (s *Store) Wrote(object client.Object) error {
	return s.remember(object, write{})
}

// Created trims a new object, as the API server returned it, in place. The Store remembers it until
// the cache has it.
func (s *Store) Created(object client.Object) error {
	return s.remember(object, write{created: true})
}

// Deleted remembers that the object is gone.
func (s *Store) Deleted(object client.Object) error { return s.remember(object, write{deleted: true}) }

// Try writes an object with a content, which its hash names. If the API server has refused the same content as too large
// within the TooLargeInterval, Try returns that error instead.
func (s *Store) Try(want client.Object, content string, write func() error) error {
	key, err := s.key(want, client.ObjectKeyFromObject(want))
	if err != nil {
		return err
	}
	s.mu.Lock()
	last, isKnown := s.refused[key]
	s.mu.Unlock()
	if isKnown && last.content == content && s.now().Before(last.expires) {
		return last.err
	}
	err = write()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, key)
	if IsTooLarge(err) {
		s.refused[key] = refusal{content, err, s.now().Add(TooLargeInterval)}
	}
	return err
}

// Saw forgets a write with which the cache has caught up; gone means that the event is the object's
// deletion. Callers call it for every event.
func (s *Store) Saw(object client.Object, gone bool) {
	storeKey, err := s.key(object, client.ObjectKeyFromObject(object))
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.writes[storeKey]
	if !ok {
		return
	}
	// A deletion of the written object, or a newer state of it, counts. The deletion of an earlier object
	// of that name does not.
	if gone && object.GetUID() == last.object.GetUID() || !gone && caughtUp(object, last) {
		delete(s.writes, storeKey)
		if gone && !last.deleted {
			s.gone = append(s.gone, last.object)
		}
	}
}

// Missed returns, once, the objects that must be reconciled again although no event says so. For some,
// the cache did not show the last write in time; it never will if the object was gone before the watch
// returned, as when a CRD is removed. For others, it showed the deletion before the last write.
func (s *Store) Missed() []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	missed := s.gone
	s.gone = nil
	for key, last := range s.writes {
		if s.now().After(last.expires) {
			missed = append(missed, last.object)
			delete(s.writes, key)
		}
	}
	maps.DeleteFunc(s.refused, func(_ storeKey, last refusal) bool { return s.now().After(last.expires) })
	return missed
}

// Unconfirmed returns created objects of a kind that the cache does not show yet, so that lists from
// the cache lack them. Callers must not change them.
func (s *Store) Unconfirmed(kind client.Object) ([]client.Object, error) {
	like, err := s.key(kind, client.ObjectKey{})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var unconfirmed []client.Object
	for key, last := range s.writes {
		if key.GroupKind == like.GroupKind && last.created && !last.deleted && !s.now().After(last.expires) {
			unconfirmed = append(unconfirmed, last.object)
		}
	}
	return unconfirmed, nil
}

func (s *Store) remember(object client.Object, as write) error {
	if !as.deleted {
		if _, err := Trim(object); err != nil {
			return err
		}
	}
	storeKey, err := s.key(object, client.ObjectKeyFromObject(object))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.writes[storeKey]; ok && last.object.GetUID() == object.GetUID() {
		as.created = as.created || last.created // The object was changed before the cache had it.
	}
	as.object, as.expires = object.DeepCopyObject().(client.Object), s.now().Add(Lag)
	s.writes[storeKey] = as
	return nil
}

func (s *Store) key(object client.Object, name client.ObjectKey) (storeKey, error) {
	gvk, err := apiutil.GVKForObject(object, s.scheme)
	return storeKey{GroupKind: gvk.GroupKind(), NamespacedName: name}, err
}

// missedInterval is how often MissedWrites checks for writes that the cache never showed.
const missedInterval = 3 * time.Second

// MissedWrites enqueues, by a generic event, objects whose last write no event has shown.
type MissedWrites struct {
	store *Store
	// Clusters and the other channels carry objects of one kind each.
	Clusters, FleetClusters, Groups, Mappings chan event.GenericEvent
}

// NewMissedWrites returns MissedWrites for the writes that a Store remembers.
func NewMissedWrites(store *Store) *MissedWrites {
	channel := func() chan event.GenericEvent { return make(chan event.GenericEvent) }
	return &MissedWrites{store, channel(), channel(), channel(), channel()}
}

// Start checks until the context ends. It makes MissedWrites a manager's Runnable.
func (u *MissedWrites) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for _, object := range u.store.Missed() {
			ctrl.LoggerFrom(ctx).Info("Reconciling an object whose last change no event may have shown", logKeyOf(object), client.ObjectKeyFromObject(object).String())
			select {
			case <-ctx.Done():
				return
			case u.of(object) <- event.GenericEvent{Object: object}:
			}
		}
	}, missedInterval)
	return nil
}

func (u *MissedWrites) of(object client.Object) chan event.GenericEvent {
	switch object.(type) {
	case *clusterv1.Cluster:
		return u.Clusters
	case *fleetv1.Cluster:
		return u.FleetClusters
	case *fleetv1.ClusterGroup:
		return u.Groups
	default:
		return u.Mappings
	}
}

// News passes all events except updates that change no cached field. It passes resyncs, because their purpose is
// another reconcile.
var News = predicate.Funcs{UpdateFunc: func(update event.UpdateEvent) bool {
	return update.ObjectOld.GetResourceVersion() == update.ObjectNew.GetResourceVersion() || isNews(update.ObjectOld, update.ObjectNew)
}}

func isNews(before, after client.Object) bool {
	a, b := ShallowCopy(before), ShallowCopy(after)
	for _, object := range []client.Object{a, b} {
		object.SetResourceVersion("")
	}
	return !equality.Semantic.DeepEqual(a, b)
}

// ShallowCopy returns an object with its own top-level fields; everything below them is shared.
func ShallowCopy(object client.Object) client.Object {
	result := reflect.New(reflect.TypeOf(object).Elem())
	result.Elem().Set(reflect.ValueOf(object).Elem())
	return result.Interface().(client.Object)
}
