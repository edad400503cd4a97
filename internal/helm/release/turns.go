package release

import (
	"context"
	"sync"
	"time"
)

// shortRender is longer than most templates take, and the longest time that a reconcile waits for another one.
const shortRender = 20 * time.Millisecond

// Turns limit how many reconciles render at once: one for each namespace, and a fixed number in total. So a
// template that uses its whole time limit blocks neither other namespaces nor reconciles without values, such
// as uninstallations.
type Turns struct {
	most int

	mu sync.Mutex
	// since holds the start time of each rendering, by namespace.
	since map[string]time.Time
	// changed is closed when a rendering ends.
	changed chan struct{}
}

// NewTurns returns Turns for at most this many namespaces at once.
func NewTurns(most int) *Turns {
	return &Turns{most: most, since: map[string]time.Time{}, changed: make(chan struct{})}
}

// take takes the turn of a namespace. It waits only while the rendering in its way has just begun; after false,
// the caller must try again later.
func (t *Turns) take(ctx context.Context, namespace string) bool {
	for {
		t.mu.Lock()
		began, isTaken := t.since[namespace]
		if !isTaken && len(t.since) >= t.most {
			isTaken = true
			for _, its := range t.since {
				if its.After(began) {
					began = its
				}
			}
		}
		if !isTaken {
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

// leave returns the turn of a namespace.
func (t *Turns) leave(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.since, namespace)
	close(t.changed)
	t.changed = make(chan struct{})
}
