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

	"github.com/muster-fleet/muster/internal/helm/fair"
)

// DefaultSize is how many children work at the same time. It is less than the number of HelmReleaseProxies that are
// reconciled at once, so that some are left that render nothing.
const DefaultSize = 2

// Pool runs jobs in children, which it starts when they are needed. It remembers no result. A nil
// Pool runs jobs in this process, without limits.
type Pool struct {
	// places are for all jobs. Those that may take long need a place in long, too, so one child is left for rendering and
	// for values.
	places, long *fair.Shares
	idleTime     time.Duration
	limits       map[kind]time.Duration
	// work does a job: in a child, except in tests.
	work func(ctx context.Context, its job, parts [][]byte) (result, error)
	mu   sync.Mutex
	idle []*child
}

// New returns a Pool of this many children. A child ends after a minute without a job: nothing says that none will come.
func New(size int64) *Pool {
	p := &Pool{places: fair.New(size, size), long: fair.New(max(1, size-1), 1), idleTime: time.Minute, limits: limits}
	p.work = p.inChild
	return p
}

// Problem is an error about the data of a job, such as an error of the template.
type Problem string

// Error returns the message.
func (p Problem) Error() string { return string(p) }

// LimitError says that a job exceeded its limit of memory or time.
type LimitError string

// Error returns the message.
func (e LimitError) Error() string { return string(e) }

// Render renders a values template over data, which it gets when a child is free. It returns the error of data.
func (p *Pool) Render(ctx context.Context, namespace, template string, data func() (map[string]any, error)) ([]byte, error) {
	done, err := p.run(ctx, namespace, job{Kind: render, Template: template}, func() ([][]byte, error) {
		its, err := data()
		if err != nil {
			return nil, err
		}
		encoded, err := json.Marshal(its)
		return [][]byte{encoded}, err
	})
	return done.Data, err
}

// Check returns an error unless Helm can read values.
func (p *Pool) Check(ctx context.Context, namespace string, values []byte) error {
	_, err := p.run(ctx, namespace, job{Kind: check}, given([][]byte{values}))
	return err
}

// Search says which version of a chart to find, and where.
type Search struct {
	Chart string
	// Wanted is a version, or a range; the newest if it is empty.
	Wanted string
	// InTags says that the list consists of the pages of a registry's tags. Otherwise, it is an index.yaml.
	InTags bool
}

// Find walks a list of versions, compressed by gzip and in parts, and returns the entry with the wanted version, or else the
// newest in the range. It gets the list when a child is free, so that no more lists are in use than there are children.
func (p *Pool) Find(ctx context.Context, namespace string, its Search, list func() ([][]byte, error)) (Found, error) {
	work := job{Kind: index, Search: its}
	if its.InTags {
		work.Kind = tags
	}
	done, err := p.run(ctx, namespace, work, list)
	return done.Found, err
}

// Unpack turns the archive of a chart, in parts, into a Chart without Version.
func (p *Pool) Unpack(ctx context.Context, namespace string, archive [][]byte) (*Chart, error) {
	done, err := p.run(ctx, namespace, job{Kind: unpack}, given(archive))
	return done.Chart, err
}

// given returns a function that returns these parts.
func given(parts [][]byte) func() ([][]byte, error) {
	return func() ([][]byte, error) { return parts, nil }
}

// run runs a job when it is the namespace's turn, with the data that it gets then.
func (p *Pool) run(ctx context.Context, namespace string, its job, get func() ([][]byte, error)) (result, error) {
	if p == nil {
		parts, err := get()
		if err != nil {
			return result{}, err
		}
		payload := net.Buffers(slices.Clone(parts))
		done := new(hand).do(its, &payload)
		return done, done.Err
	}
	its.Limit = p.limits[its.Kind]
	if its.Kind != render && its.Kind != check {
		if err := p.long.Wait(ctx, namespace); err != nil {
			return result{}, err
		}
		defer p.long.Release(namespace, 1)
	}
	if err := p.places.Wait(ctx, namespace); err != nil {
		return result{}, err
	}
	defer p.places.Release(namespace, 1)
	parts, err := get()
	if err != nil {
		return result{}, err
	}
	for _, part := range parts {
		its.Size += int64(len(part))
	}
	return p.work(ctx, its, parts)
}

// inChild does a job in a child.
func (p *Pool) inChild(ctx context.Context, its job, parts [][]byte) (result, error) {
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
			return done, done.Err
		case isNew || !errors.Is(err, errDied): // Else, the idle child was dead already.
			return result{}, err
		}
	}
}

// take returns an idle child, or a new one.
func (p *Pool) take() (worker *child, isNew bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		last := len(p.idle) - 1
		worker, p.idle = p.idle[last], p.idle[:last]
		if worker.idle.Stop() { // Otherwise, it has ended.
			return worker, false, nil
		}
	}
	worker, err = start()
	return worker, true, err
}

// keep keeps a child for the next job.
func (p *Pool) keep(worker *child) {
	worker.idle = time.AfterFunc(p.idleTime, worker.end)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, worker)
}
