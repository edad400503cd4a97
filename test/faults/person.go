package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// requestTimeout is when a person gives a request up.
	requestTimeout = 10 * time.Second
	tryAgain       = 100 * time.Millisecond
)

// answer is what became of a request, as a person sees it.
type answer string

const (
	accepted answer = "accepted"
	// denied: a webhook of ours, or the API server, judged it and said no.
	denied answer = "denied"
	// closed: a webhook could not be asked, and failurePolicy Fail said no.
	closed answer = "failed closed"
	// unavailable: the API server could not serve it, or nobody knows.
	unavailable answer = "unavailable"
)

// judge sorts the answers to requests.
func judge(err error) answer {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return accepted
	case !errors.As(err, &status):
		return unavailable // The connection, or the time.
	case strings.Contains(err.Error(), "failed calling webhook"):
		return closed
	case strings.Contains(err.Error(), "admission webhook"):
		return denied
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err), apierrors.IsUnauthorized(err):
		return unavailable
	case isStarting(err):
		return unavailable
	}
	return denied
}

// isStarting reports whether an API server refuses because it has not read yet what
// it needs: roles, CRDs, webhook configurations, namespaces.
var starting = regexp.MustCompile(`not yet ready to handle request|forbidden: User .* cannot|could not find the requested resource|RBAC: `)

func isStarting(err error) bool { return starting.MatchString(err.Error()) }

// tally counts what people did in a run.
type tally struct {
	// requests are all, admissions those that concern a Cluster or the FleetAddonConfig.
	requests, admissions atomic.Int64
	// retried are refusals by an API server that was down.
	retried atomic.Int64
	closed  atomic.Int64
	// unstamped are Clusters that were created while the webhook could not be asked.
	unstamped atomic.Int64

	// apiDown says that the API server may be down, and webhooksDown the webhooks.
	apiDown, webhooksDown atomic.Bool

	mu    sync.Mutex
	wrong []string
}

func (t *tally) wrongly(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrong = append(t.wrong, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// request is something that a person asks of the API server and should get.
type request struct {
	what string
	// admission says that webhooks of ours look at it; mayClose that one of them fails closed.
	admission, mayClose bool
	// do asks; again says that it was asked before and nobody knows what became of it.
	do func(ctx context.Context, again bool) error
}

// ask asks until the answer is final, and reports whether it was accepted. Every
// answer that a person should not have got is noted.
func (t *tally) ask(ctx context.Context, r request) bool {
	t.requests.Add(1)
	if r.admission {
		t.admissions.Add(1)
	}
	for again := false; ; again = true {
		apiDown, webhooksDown := t.apiDown.Load(), t.webhooksDown.Load()
		attempt, done := context.WithTimeout(ctx, requestTimeout)
		err := r.do(attempt, again)
		done()
		if ctx.Err() != nil && err != nil {
			return false
		}
		// What was in flight when it came back, or went, may have met either.
		apiDown, webhooksDown = apiDown || t.apiDown.Load(), webhooksDown || t.webhooksDown.Load()
		switch judge(err) {
		case accepted:
			return true
		case closed:
			if r.mayClose && webhooksDown {
				t.closed.Add(1)
			} else {
				t.wrongly("%s: %v", r.what, err)
			}
			return false
		case denied:
			t.wrongly("%s: %v", r.what, err)
			return false
		}
		if apiDown {
			t.retried.Add(1)
		} else if !again {
			t.wrongly("%s: %v", r.what, err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(tryAgain):
		}
	}
}

// tryForbidden asks for something that must be refused.
func (t *tally) tryForbidden(ctx context.Context, what string, do func(context.Context) error) {
	t.requests.Add(1)
	t.admissions.Add(1)
	attempt, done := context.WithTimeout(ctx, requestTimeout)
	defer done()
	apiDown := t.apiDown.Load()
	err := do(attempt)
	switch judge(err) {
	case accepted:
		t.wrongly("%s was accepted", what)
	case unavailable:
		if apiDown || t.apiDown.Load() {
			t.retried.Add(1)
		} else if ctx.Err() == nil {
			t.wrongly("%s: %v", what, err)
		}
	case closed:
		t.closed.Add(1)
	}
}
