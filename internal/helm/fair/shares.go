// Package fair divides workers, memory and readers between namespaces.
package fair

import (
	"context"
	"sync"
	"time"

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
	// tickets maps each namespace whose callers were refused by Soon to its *ticket.
	tickets sync.Map
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
func (s *Shares) Wait(ctx context.Context, namespace string) error { return s.Take(ctx, namespace, 1) }

// Take takes units as soon as they are free. A namespace that has nothing else may take more at once than each.
func (s *Shares) Take(ctx context.Context, namespace string, units int64) error {
	own := s.want(namespace, units)
	err := own.Acquire(ctx, min(units, s.each))
	if err == nil {
		if err = s.all.Acquire(ctx, units); err == nil {
			return nil
		}
		own.Release(min(units, s.each))
	}
	s.want(namespace, -units)
	return err
}

const (
	// moment is how long Soon waits at most: longer than most jobs take.
	moment = 20 * time.Millisecond
	// RetryInterval is how often a caller that Soon refused has to call it again.
	RetryInterval = time.Second
)

// ticket keeps the place of a namespace in the queue, and then the unit, until a caller comes for it.
type ticket struct {
	at    time.Time
	ready chan struct{}
}

// Soon takes a unit if one is free in a moment. Otherwise, the caller has to come back after RetryInterval: the
// namespace keeps its place in the queue. All callers of a namespace together wait one moment for each unit, so a
// namespace with slow jobs blocks none.
func (s *Shares) Soon(namespace string) bool {
	for !s.Try(namespace, 1) {
		known, isKnown := s.tickets.LoadOrStore(namespace, &ticket{time.Now(), make(chan struct{})})
		its := known.(*ticket)
		if !isKnown {
			go s.redeem(namespace, its)
		}
		select {
		case <-its.ready:
		case <-time.After(time.Until(its.at.Add(moment))):
		}
		select {
		case <-its.ready:
			if s.tickets.CompareAndDelete(namespace, its) { // Otherwise, another caller has the unit.
				return true
			}
		default:
			return false
		}
	}
	return true
}

// redeem waits for the unit of a ticket. If no caller comes for the unit, redeem gives it back.
func (s *Shares) redeem(namespace string, its *ticket) {
	_ = s.Wait(context.Background(), namespace)
	close(its.ready)
	time.AfterFunc(2*RetryInterval, func() {
		if s.tickets.CompareAndDelete(namespace, its) {
			s.Release(namespace, 1)
		}
	})
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
	s.want(namespace, -units).Release(min(units, s.each))
}
