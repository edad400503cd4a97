// Package worker runs jobs that tenants can make expensive, in child processes: it renders values templates,
// and reads the charts and indexes of repositories. A child is the same program with a hidden argument, and
// without environment. It limits its own memory, and its parent limits the time. A job that exceeds a limit
// ends its child, and no other job.
package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/helm/chart"
)

// DefaultSize is how many children work at the same time.
const DefaultSize = 2

// Pool runs jobs in children, which it starts when they are needed. It remembers no result. A nil
// Pool runs jobs in this process, without limits.
type Pool struct {
	turns
	idleTime time.Duration
	limits   map[kind]time.Duration
	mu       sync.Mutex
	idle     []*child
}

// New returns a Pool of this many children. A child ends after a minute without a job.
func New(size int) *Pool {
	return &Pool{turns: newTurns(size), idleTime: time.Minute, limits: limits}
}

// Problem is an error about the data of a job, such as an error of the template.
type Problem string

// Error returns the message.
func (p Problem) Error() string { return string(p) }

// LimitError says that a job exceeded its limit of memory or time.
type LimitError string

// Error returns the message.
func (e LimitError) Error() string { return string(e) }

// Render renders a values template over data.
func (p *Pool) Render(ctx context.Context, namespace, template string, data map[string]any) ([]byte, error) {
	encoded, err := json.Marshal(data)
	if err != nil {
		return nil, errors.New("the data cannot be used")
	}
	done, err := p.run(ctx, namespace, job{Kind: render, Template: template}, [][]byte{encoded})
	return done.Data, err
}

// Check returns an error unless Helm can read values.
func (p *Pool) Check(ctx context.Context, namespace string, values []byte) error {
	_, err := p.run(ctx, namespace, job{Kind: check}, [][]byte{values})
	return err
}

// Index reduces an index.yaml, compressed by gzip and in parts, to a list for EntriesOf.
func (p *Pool) Index(ctx context.Context, namespace string, compressed [][]byte) ([]byte, error) {
	done, err := p.run(ctx, namespace, job{Kind: index}, compressed)
	return done.Data, err
}

// Unpack turns the archive of a chart, in parts, into a Chart without Version.
func (p *Pool) Unpack(ctx context.Context, namespace string, archive [][]byte) (*chart.Chart, error) {
	done, err := p.run(ctx, namespace, job{Kind: unpack}, archive)
	return done.Chart, err
}

// run runs a job when it is the namespace's turn.
func (p *Pool) run(ctx context.Context, namespace string, its job, parts [][]byte) (result, error) {
	for _, part := range parts {
		its.Size += int64(len(part))
	}
	if p == nil {
		payload := net.Buffers(slices.Clone(parts))
		done := new(hand).do(its, &payload)
		return done, done.err()
	}
	its.Limit = p.limits[its.Kind]
	if err := p.wait(ctx, namespace); err != nil {
		return result{}, err
	}
	defer p.leave(namespace)
	for {
		worker, isNew, err := p.take()
		if err != nil {
			return result{}, fmt.Errorf("starting a worker: %w", err)
		}
		done, err := worker.run(ctx, its, parts)
		if !worker.isDead {
			p.keep(worker)
		}
		switch {
		case err == nil:
			return done, done.err()
		case isNew || !errors.Is(err, errDied): // Else, the idle child was dead already.
			return result{}, err
		}
	}
}

// take returns an idle child, or a new one.
func (p *Pool) take() (worker *child, isNew bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		worker, p.idle = p.idle[last], p.idle[:last]
		worker.idle.Stop()
		return worker, false, nil
	}
	worker, err = start()
	return worker, true, err
}

// keep keeps a child for the next job.
func (p *Pool) keep(worker *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, worker)
	worker.idle = time.AfterFunc(p.idleTime, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.idle, worker); i >= 0 {
			p.idle = slices.Delete(p.idle, i, i+1)
			worker.end()
		}
	})
}

// turns shares places between namespaces: the namespaces with waiting jobs take turns, and none has all places.
type turns struct {
	mu sync.Mutex
	// free is how many places are free, and most how many a namespace may have.
	free, most int
	used       map[string]int
	order      []string
	waiting    map[string][]chan struct{}
}

func newTurns(size int) turns {
	return turns{free: size, most: max(1, size-1), used: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// wait returns when there is a place.
func (t *turns) wait(ctx context.Context, namespace string) error {
	turn := make(chan struct{})
	t.mu.Lock()
	if t.waiting[namespace] = append(t.waiting[namespace], turn); len(t.waiting[namespace]) == 1 {
		t.order = append(t.order, namespace)
	}
	t.grant()
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		go func() {
			<-turn
			t.leave(namespace)
		}()
		return ctx.Err()
	}
}

// leave gives a place back.
func (t *turns) leave(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.used[namespace]--; t.used[namespace] == 0 {
		delete(t.used, namespace)
	}
	t.grant()
}

// grant gives free places to the namespaces whose turn it is.
func (t *turns) grant() {
	for t.free > 0 {
		next := slices.IndexFunc(t.order, func(namespace string) bool { return t.used[namespace] < t.most })
		if next < 0 {
			return
		}
		namespace := t.order[next]
		queue := t.waiting[namespace]
		t.order = slices.Delete(t.order, next, next+1)
		if t.waiting[namespace] = queue[1:]; len(queue) == 1 {
			delete(t.waiting, namespace)
		} else {
			t.order = append(t.order, namespace)
		}
		t.free--
		t.used[namespace]++
		close(queue[0])
	}
}
