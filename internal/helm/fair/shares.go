// Package fair divides workers, memory and readers between namespaces.
package fair

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Shares are units that namespaces take and give back. Within a namespace, requests are served in their order. Between
// namespaces, the one with the fewest units is served first. If several have the same number, the one that has waited longest
// since it came or gave units back is served first. So namespaces take turns.
type Shares struct {
	each int64
	mu   sync.Mutex
	free int64
	// lines are the namespaces that have units or wait for some, in the order in which they came or last gave units back.
	lines []*line
}

type line struct {
	namespace string
	has       int64
	waiting   []*request
}

type request struct {
	units int64
	done  chan struct{}
}

// New returns Shares of so many units in all, of which a namespace may have at most each.
func New(all, each int64) *Shares { return &Shares{free: all, each: each} }

// Wait takes a unit as soon as it is its turn.
func (s *Shares) Wait(ctx context.Context, namespace string) error { return s.Take(ctx, namespace, 1) }

// Try takes units if there are enough now, and it is the namespace's turn.
func (s *Shares) Try(namespace string, units int64) bool {
	ended, end := context.WithCancel(context.Background())
	end()
	return s.Take(ended, namespace, units) == nil
}

// Take takes units as soon as it is their turn. A namespace that has nothing else may take more at once than each, up to
// all. The error is the one of the context.
func (s *Shares) Take(ctx context.Context, namespace string, units int64) error {
	wanted := &request{units, make(chan struct{})}
	s.change(namespace, func(its *line) { its.waiting = append(its.waiting, wanted) })
	select {
	case <-wanted.done:
	case <-ctx.Done():
		s.change(namespace, func(its *line) {
			its.waiting = slices.DeleteFunc(its.waiting, func(other *request) bool { return other == wanted })
		})
	}
	select {
	case <-wanted.done:
		return nil
	default:
		return ctx.Err()
	}
}

// Release gives units back.
func (s *Shares) Release(namespace string, units int64) {
	s.change(namespace, func(its *line) {
		its.has -= units
		s.free += units
		s.lines = append(slices.DeleteFunc(s.lines, func(other *line) bool { return other == its }), its)
	})
}

// change changes the line of a namespace, and then gives units to those whose turn it is.
func (s *Shares) change(namespace string, change func(*line)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.lines, func(its *line) bool { return its.namespace == namespace })
	if at < 0 {
		at, s.lines = len(s.lines), append(s.lines, &line{namespace: namespace})
	}
	change(s.lines[at])
	for next := s.next(); next != nil && next.waiting[0].units <= s.free; next = s.next() {
		its := next.waiting[0]
		next.waiting, next.has, s.free = next.waiting[1:], next.has+its.units, s.free-its.units
		close(its.done)
	}
	s.lines = slices.DeleteFunc(s.lines, func(its *line) bool { return its.has == 0 && len(its.waiting) == 0 })
}

// next returns the namespace that gets the next units; nil if none waits that may have more. All others wait for it, even if
// they want less than is free.
func (s *Shares) next() (next *line) {
	for _, its := range s.lines {
		if len(its.waiting) > 0 && (its.has == 0 || its.has+its.waiting[0].units <= s.each) && (next == nil || its.has < next.has) {
			next = its
		}
	}
	return next
}

// Turns let some reconciles wait for something that takes long, such as a worker. The others end, and their objects are
// enqueued when it is their turn. A turn ends with the reconcile that has it, so no object that has gone keeps one.
type Turns struct {
	*Shares
	wake func(types.NamespacedName)
	// waiting maps the key of each object that waits to whether it is its turn.
	waiting sync.Map
}

// NewTurns returns Turns for at most three quarters of so many reconciles, and for at most half of them in one namespace.
// wake enqueues an object.
func NewTurns(reconciles int, wake func(types.NamespacedName)) *Turns {
	return &Turns{Shares: New(int64(max(1, reconciles*3/4)), int64(max(1, reconciles/2))), wake: wake}
}

// Turn is the turn of one reconcile, if it has one.
type Turn struct {
	of  *Turns
	key types.NamespacedName
	has bool
}

// Of returns the turn with which a reconcile begins. The reconcile has to end it.
func (t *Turns) Of(key types.NamespacedName) *Turn {
	return &Turn{t, key, t.waiting.CompareAndDelete(key, true)}
}

// Take reports whether the reconcile has its turn. Otherwise, the object is enqueued when it is.
func (t *Turn) Take() bool {
	if t.has = t.has || t.of.Try(t.key.Namespace, 1); t.has {
		return true
	}
	if _, waits := t.of.waiting.LoadOrStore(t.key, false); !waits {
		go func() {
			_ = t.of.Wait(context.Background(), t.key.Namespace) // It never fails.
			t.of.waiting.Store(t.key, true)
			t.of.wake(t.key)
		}()
	}
	return false
}

// End ends the turn.
func (t *Turn) End() {
	if t.has {
		t.of.Release(t.key.Namespace, 1)
	}
}
