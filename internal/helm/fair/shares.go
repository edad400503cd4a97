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
	own  map[string]*semaphore.Weighted
}

// New returns Shares of so many units in all, of which a namespace may have at most each.
func New(all, each int64) *Shares {
	return &Shares{all: semaphore.NewWeighted(all), each: each, own: map[string]*semaphore.Weighted{}}
}

// of returns the share of a namespace.
func (s *Shares) of(namespace string) *semaphore.Weighted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own[namespace] == nil {
		s.own[namespace] = semaphore.NewWeighted(s.each)
	}
	return s.own[namespace]
}

// Wait takes a unit as soon as one is free.
func (s *Shares) Wait(ctx context.Context, namespace string) error {
	own := s.of(namespace)
	if err := own.Acquire(ctx, 1); err != nil {
		return err
	}
	err := s.all.Acquire(ctx, 1)
	if err != nil {
		own.Release(1)
	}
	return err
}

// Try takes units if there are enough now.
func (s *Shares) Try(namespace string, units int64) bool {
	own := s.of(namespace)
	if !own.TryAcquire(units) {
		return false
	}
	isFree := s.all.TryAcquire(units)
	if !isFree {
		own.Release(units)
	}
	return isFree
}

// Release gives units back.
func (s *Shares) Release(namespace string, units int64) {
	s.all.Release(units)
	s.of(namespace).Release(units)
}
