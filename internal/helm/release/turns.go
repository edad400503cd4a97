package release

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// shortRender is longer than most templates take to render. A reconcile waits for another one at most this long.
const shortRender = 20 * time.Millisecond

// Turns limit how many reconciles render at once: one for each namespace, and most in total. Refused namespaces
// are next, in their order. So a template that takes the maximum time blocks neither other namespaces nor
// reconciles without values, such as uninstallations.
type Turns struct {
	most int

	mu sync.Mutex
	// since is when each rendering namespace began.
	since map[string]time.Time
	// line holds the refused namespaces.
	line []refused
	// changed is closed when one ends.
	changed chan struct{}
}

// refused is a namespace in the line, and the time of its last request.
type refused struct {
	namespace string
	asked     time.Time
}

// NewTurns returns Turns for at most so many namespaces at once.
func NewTurns(most int) *Turns {
	return &Turns{most: most, since: map[string]time.Time{}, changed: make(chan struct{})}
}

// take takes the turn of a namespace. It waits only for renderings that have just begun; false tells the caller to
// come back after turnInterval.
func (t *Turns) take(ctx context.Context, namespace string) bool {
	for {
		t.mu.Lock()
		began, isFree := t.isNext(namespace)
		if isFree {
			t.since[namespace] = time.Now()
			t.mu.Unlock()
			return true
		}
		changed, left := t.changed, time.Until(began.Add(shortRender))
		t.mu.Unlock()
		if left <= 0 {
			return false
		}
		select {
		case <-changed:
		case <-time.After(left):
		case <-ctx.Done():
			return false
		}
	}
}

// isNext reports whether a namespace may render now. If not, it returns the start of the rendering that the
// namespace waits for, and puts the namespace into the line unless it waits for itself.
func (t *Turns) isNext(namespace string) (began time.Time, isFree bool) {
	if began, isBusy := t.since[namespace]; isBusy {
		return began, false
	}
	t.line = slices.DeleteFunc(t.line, func(its refused) bool { // Its release is gone, or waits for something else.
		return time.Since(its.asked) > 2*turnInterval
	})
	own := slices.IndexFunc(t.line, func(its refused) bool { return its.namespace == namespace })
	first := slices.IndexFunc(t.line, func(its refused) bool { return t.since[its.namespace].IsZero() })
	if len(t.since) < t.most {
		if first == own {
			t.line = slices.DeleteFunc(t.line, func(its refused) bool { return its.namespace == namespace })
			return began, true
		}
	} else {
		began = slices.MaxFunc(slices.Collect(maps.Values(t.since)), time.Time.Compare)
	}
	if own < 0 {
		own, t.line = len(t.line), append(t.line, refused{namespace: namespace})
	}
	t.line[own].asked = time.Now()
	return began, false
}

// leave ends the turn of a namespace.
func (t *Turns) leave(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.since, namespace)
	close(t.changed)
	t.changed = make(chan struct{})
}
