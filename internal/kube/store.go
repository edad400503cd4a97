package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Lag is how long the Store waits for the cache to show a write. A cache that lags longer has lost its watch, and after its
// relist it is right; after a restore of etcd, it may never show the write.
const Lag = 20 * time.Second

// ErrBehind means that the cache does not show one of our own writes yet. The reconcile is put back.
var ErrBehind = errors.New("the cache does not show the last write yet")

// Store reads objects from the cache, but never older than those written through it. Otherwise the event
// of a first write would cause a second. It notes the version of each write, as kube-controller-manager does, and
// keeps no object.
type Store struct {
	reader client.Reader
	scheme *runtime.Scheme
	now    func() time.Time

	mu     sync.Mutex
	writes map[storeKey]write
	swept  time.Time // when expired writes were last dropped
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

// write is the last write of an object.
type write struct {
	uid     types.UID
	version string
	// created means that the cache may never have shown the object.
	created, deleted bool
	expires          time.Time
}

// NewStore returns a Store over a cached reader.
func NewStore(reader client.Reader, scheme *runtime.Scheme) *Store {
	return &Store{reader: reader, scheme: scheme, now: time.Now, writes: map[storeKey]write{}, refused: map[storeKey]refusal{}}
}

// Get reads an object, read-only, and reports whether it exists. The result may be older than the API
// server's, but not older than Muster's own writes: until the cache shows them, the error is ErrBehind.
func (s *Store) Get(ctx context.Context, key client.ObjectKey, object client.Object) (bool, error) {
	storeKey, err := s.key(object, key)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	last, isNoted := s.writes[storeKey] // Before the cache, which may catch up meanwhile.
	s.mu.Unlock()
	err = s.reader.Get(ctx, key, object, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	found := err == nil
	if !isNoted {
		return found, nil
	}
	if !last.isShown(found, object) && s.now().Before(last.expires) {
		return false, fmt.Errorf("%s %s: %w", storeKey.Kind, key, ErrBehind)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writes[storeKey] == last {
		delete(s.writes, storeKey)
	}
	return found, nil
}

// isShown reports whether what the cache has is at least as new as the write.
func (w write) isShown(found bool, cached client.Object) bool {
	switch {
	case w.deleted:
		return !found || cached.GetUID() != w.uid || !cached.GetDeletionTimestamp().IsZero()
	case !found:
		return !w.created // The cache had the object: it has been deleted since.
	default:
		return !IsOlder(cached, w.version)
	}
}

// IsOlder reports whether the state of an object is from before a resourceVersion of the same resource.
func IsOlder(cached client.Object, version string) bool {
	order, err := resourceversion.CompareResourceVersion(cached.GetResourceVersion(), version)
	return err == nil && order < 0
}

// Wrote trims an updated object, as the API server returned it, in place, and notes its version.
func (s *Store) Wrote(ctx context.Context, object client.Object) error {
	return s.note(ctx, object, write{})
}

// Created trims a new object, as the API server returned it, in place, and notes its version.
func (s *Store) Created(ctx context.Context, object client.Object) error {
	return s.note(ctx, object, write{created: true})
}

// Deleted notes that the object is gone, or will be when its finalizers are.
func (s *Store) Deleted(ctx context.Context, object client.Object) error {
	return s.note(ctx, object, write{deleted: true})
}

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
	s.sweep()
	delete(s.refused, key)
	if IsTooLarge(err) {
		s.refused[key] = refusal{content, err, s.now().Add(TooLargeInterval)}
	}
	return err
}

// Creating returns the keys of objects of a kind that were created within the Lag. Lists from the cache may lack those for
// which Get returns ErrBehind.
func (s *Store) Creating(kind client.Object) ([]client.ObjectKey, error) {
	like, err := s.key(kind, client.ObjectKey{})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []client.ObjectKey
	for key, last := range s.writes {
		if key.GroupKind == like.GroupKind && last.created && !last.deleted {
			keys = append(keys, key.NamespacedName)
		}
	}
	return keys, nil
}

func (s *Store) note(ctx context.Context, object client.Object, as write) error {
	if !as.deleted {
		if _, err := Trim(object); err != nil {
			return err
		}
	}
	key, err := s.key(object, client.ObjectKeyFromObject(object))
	if err != nil {
		return err
	}
	if created, isWatched := ctx.Value(createdKey{}).(*bool); isWatched {
		*created = *created || as.created
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	if last, isNoted := s.writes[key]; isNoted && last.uid == object.GetUID() {
		as.created = as.created || last.created // The object was changed before the cache had it.
		// Two reconcilers may write an object, and the answer to the earlier write may come last.
		if !as.deleted && (last.deleted || IsOlder(object, last.version)) {
			return nil
		}
	}
	as.uid, as.version, as.expires = object.GetUID(), object.GetResourceVersion(), s.now().Add(Lag)
	s.writes[key] = as
	return nil
}

// sweep drops what has expired. Most objects are read again, which drops their write.
func (s *Store) sweep() {
	now := s.now()
	if now.Sub(s.swept) < Lag {
		return
	}
	s.swept = now
	maps.DeleteFunc(s.writes, func(_ storeKey, last write) bool { return now.After(last.expires) })
	maps.DeleteFunc(s.refused, func(_ storeKey, last refusal) bool { return now.After(last.expires) })
}

// behindInterval is how long a reconcile waits for the cache to show its own writes. No event says that the cache has caught
// up with a write after which others changed or deleted the object.
const behindInterval = 100 * time.Millisecond

type createdKey struct{}

// Consistent returns a reconciler that puts a key back while the cache does not show our own writes. A reconcile that created
// something is followed by another after the Lag: an object that was deleted before the cache had it has no event. Other
// writes must not be followed by one: what others revert, or the API server keeps, would be written every 20 s for ever.
func Consistent(inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		created := new(bool)
		result, err := inner.Reconcile(context.WithValue(ctx, createdKey{}, created), req)
		if errors.Is(err, ErrBehind) {
			return reconcile.Result{RequeueAfter: behindInterval}, nil
		}
		if *created && err == nil {
			result.RequeueAfter = Sooner(result.RequeueAfter, Lag)
		}
		return result, err
	})
}

func (s *Store) key(object client.Object, name client.ObjectKey) (storeKey, error) {
	gvk, err := apiutil.GVKForObject(object, s.scheme)
	return storeKey{GroupKind: gvk.GroupKind(), NamespacedName: name}, err
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
