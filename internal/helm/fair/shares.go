// Package fair divides workers, memory and readers between namespaces.
package fair

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Shares are units that namespaces take and give back. A waiting namespace first takes a unit of its own share,
// and then joins the common queue. So waiting namespaces take turns, and none can take all units.
type Shares struct {
	all  *semaphore.Weighted
	each int64
	mu   sync.Mutex
	// own holds the shares of the namespaces that have units or wait for some.
	own map[string]*share
}

type share struct {
	*semaphore.Weighted
	// wanted counts the units that the namespace has or waits for.
	wanted int64
}

// New returns Shares of so many units in all, of which a namespace may have at most each.
func New(all, each int64) *Shares {
	return &Shares{all: semaphore.NewWeighted(all), each: each, own: map[string]*share{}}
}

// want changes how many units a namespace wants, and returns its share.
func (s *Shares) want(namespace string, units int64) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.own[namespace]
	if own == nil {
		own = &share{Weighted: semaphore.NewWeighted(s.each)}
		s.own[namespace] = own
	}
	if own.wanted += units; own.wanted == 0 {
		delete(s.own, namespace)
	}
	return own
}

// Wait takes a unit as soon as one is free.
func (s *Shares) Wait(ctx context.Context, namespace string) error {
	own := s.want(namespace, 1)
	err := own.Acquire(ctx, 1)
	if err == nil {
		if err = s.all.Acquire(ctx, 1); err == nil {
			return nil
		}
		own.Release(1)
	}
	s.want(namespace, -1)
	return err
}

// Try takes units if there are enough now.
func (s *Shares) Try(namespace string, units int64) bool {
	own := s.want(namespace, units)
	if own.TryAcquire(units) {
		if s.all.TryAcquire(units) {
			return true
		}
		own.Release(units)
	}
	s.want(namespace, -units)
	return false
}

// Release gives units back.
func (s *Shares) Release(namespace string, units int64) {
	s.all.Release(units)
	s.want(namespace, -units).Release(units)
}
