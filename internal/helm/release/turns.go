package release

import (
	"context"
	"slices"
	"sync"
	"time"
)

// shortRender is longer than most templates take, and the longest time that a reconcile waits for another one.
const shortRender = 20 * time.Millisecond

// Turns bound how many reconciles render at once: one for each namespace, and most in all. Namespaces that were
// refused are next, in their order. So a template that takes all the time that it may have holds up neither other
// namespaces nor reconciles without values, such as uninstallations.
type Turns struct {
	most int

	mu sync.Mutex
	// since is the time at which each namespace that renders has begun.
	since map[string]time.Time
	// line are the refused namespaces, and asked the time of their last request.
	line  []string
	asked map[string]time.Time
	// changed is closed when one ends.
	changed chan struct{}
}

// NewTurns returns Turns for at most so many namespaces at once.
func NewTurns(most int) *Turns {
	return &Turns{most: most, since: map[string]time.Time{}, asked: map[string]time.Time{}, changed: make(chan struct{})}
}

// take takes the turn of a namespace. It waits only while those that render have just begun; false tells the
// caller to come back after turnInterval.
func (t *Turns) take(ctx context.Context, namespace string) bool {
	for {
		t.mu.Lock()
		began, isFree := t.isNext(namespace)
		if isFree {
			t.since[namespace] = time.Now()
			t.dropFromLine(namespace)
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

// isNext reports whether a namespace may render now. If not, it returns when the render has begun for which the
// namespace waits, and puts the namespace into the line unless it waits for itself.
func (t *Turns) isNext(namespace string) (began time.Time, isFree bool) {
	if began, isBusy := t.since[namespace]; isBusy {
		return began, false
	}
	t.line = slices.DeleteFunc(t.line, func(its string) bool { // Its release has gone, or waits for something else.
		return time.Since(t.asked[its]) > 2*turnInterval
	})
	first := slices.IndexFunc(t.line, func(its string) bool { _, isBusy := t.since[its]; return !isBusy })
	if len(t.since) < t.most && (first < 0 || t.line[first] == namespace) {
		return began, true
	}
	if !slices.Contains(t.line, namespace) {
		t.line = append(t.line, namespace)
	}
	t.asked[namespace] = time.Now()
	if len(t.since) < t.most {
		return began, false // It is the turn of another one.
	}
	for _, its := range t.since {
		if its.After(began) {
			began = its
		}
	}
	return began, false
}

func (t *Turns) dropFromLine(namespace string) {
	t.line = slices.DeleteFunc(t.line, func(its string) bool { return its == namespace })
	delete(t.asked, namespace)
}

// leave gives the turn of a namespace back.
func (t *Turns) leave(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.since, namespace)
	close(t.changed)
	t.changed = make(chan struct{})
}
