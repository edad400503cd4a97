// Package apply reads and writes the objects that package desired describes. It
// owns server-side apply, the comparison that spares writes, and reading one's own
// writes; it does not know why an object should exist.
package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// lag is how long a write is remembered while the cache has not shown it. A cache
// that lags longer has lost its watch, and what it shows after the relist is true.
const lag = 20 * time.Second

// Store reads objects from the cache, but never older than what was written
// through it. Without that, the event of a first write would make a second.
type Store struct {
	reader client.Reader
	scheme *runtime.Scheme
	now    func() time.Time

	mu     sync.Mutex
	writes map[storeKey]write
	// gone holds objects whose deletion came while their last write was remembered:
	// whoever read them from here in between believes that they exist.
	gone []client.Object
}

type storeKey struct {
	schema.GroupKind
	types.NamespacedName
}

type write struct {
	object  client.Object // as the cache would show it
	deleted bool
	expires time.Time
}

// NewStore returns a Store over a cached reader.
func NewStore(reader client.Reader, scheme *runtime.Scheme) *Store {
	return &Store{reader: reader, scheme: scheme, now: time.Now, writes: map[storeKey]write{}}
}

// Get reads an object into object and reports whether it exists. Like any object
// from a cache it may lag behind the API server, but not behind our own writes.
func (s *Store) Get(ctx context.Context, key client.ObjectKey, object client.Object) (bool, error) {
	err := s.reader.Get(ctx, key, object)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	found := err == nil

	storeKey, err := s.key(object, key)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.writes[storeKey]
	if !ok {
		return found, nil
	}
	if found && caughtUp(object, last) {
		delete(s.writes, storeKey)
		return found, nil
	}
	if s.now().After(last.expires) {
		return found, nil // Unseen tells of it, and forgets it.
	}
	if last.deleted {
		return false, nil
	}
	return true, copyInto(last.object, object)
}

// caughtUp reports whether what the cache shows is at least as new as the write.
func caughtUp(cached client.Object, last write) bool {
	if last.deleted {
		return cached.GetUID() != last.object.GetUID()
	}
	order, err := resourceversion.CompareResourceVersion(cached.GetResourceVersion(), last.object.GetResourceVersion())
	return err != nil || order >= 0
}

// Wrote remembers the object as the API server returned it.
func (s *Store) Wrote(object client.Object) error { return s.remember(object, false) }

// Deleted remembers that the object is gone.
func (s *Store) Deleted(object client.Object) error { return s.remember(object, true) }

// Saw forgets a write that the cache has caught up with; gone says that the
// cache's news is the object's deletion. To be called for every event.
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
	// A deletion of the object we wrote, or a newer state of it, is newer news. The
	// deletion of a predecessor is not.
	if gone && object.GetUID() == last.object.GetUID() || !gone && caughtUp(object, last) {
		delete(s.writes, storeKey)
		if gone && !last.deleted {
			s.gone = append(s.gone, last.object)
		}
	}
}

// Unseen returns, once, the objects that have to be looked at again although no event
// will say so. Of some the cache has not shown the last write in time; it never will if
// the object was gone again before the cache's watch was back, as with a CRD that is
// removed. Of others it showed the deletion before the last write.
func (s *Store) Unseen() []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	unseen := s.gone
	s.gone = nil
	for key, last := range s.writes {
		if s.now().After(last.expires) {
			unseen = append(unseen, last.object)
			delete(s.writes, key)
		}
	}
	return unseen
}

func (s *Store) remember(object client.Object, deleted bool) error {
	storeKey, err := s.key(object, client.ObjectKeyFromObject(object))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.writes[storeKey] = write{object: object.DeepCopyObject().(client.Object), deleted: deleted, expires: now.Add(lag)}
	return nil
}

func (s *Store) key(object client.Object, name client.ObjectKey) (storeKey, error) {
	gvk, err := apiutil.GVKForObject(object, s.scheme)
	return storeKey{GroupKind: gvk.GroupKind(), NamespacedName: name}, err
}

// copyInto deep-copies one object into another of the same type.
func copyInto(from, to client.Object) error {
	source, target := reflect.ValueOf(from.DeepCopyObject()), reflect.ValueOf(to)
	if source.Type() != target.Type() {
		return fmt.Errorf("reading a %s into a %s", source.Type(), target.Type())
	}
	target.Elem().Set(source.Elem())
	return nil
}

// IsAbsent reports whether an error says that there is nothing (any more) to write
// to: the object or its namespace is gone or going. An event will tell if it returns.
func IsAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !IsUnserved(err) || apierrors.HasStatusCause(err, "NamespaceTerminating")
}

// IsUnserved reports whether an error says that a kind is not served: its CRD is gone
// or going. No event will tell when it returns, as nothing of that kind is left.
func IsUnserved(err error) bool {
	// An API server that does not know a resource answers without a Status, which
	// tells it from one that does not find an object.
	unknown := apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	// Its words for an apply that would create have no reason of their own.
	terminating := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "custom resource definition is terminating")
	return unknown || terminating || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err)
}

// IsPassing reports whether an error says nothing about the request: the connection
// broke, or the API server has no time. The same request may succeed in a moment.
func IsPassing(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) && isConnection(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// isConnection reports whether an error comes from the network or from waiting for it.
func isConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}
