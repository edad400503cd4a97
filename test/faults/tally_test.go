package faults

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
	// requestTimeout is when a person gives up a request.
	requestTimeout = 10 * time.Second
	tryAgain       = 100 * time.Millisecond
)

// answer is the result of a request, as a person sees it.
type answer string

const (
	accepted answer = "accepted"
	// denied: one of Muster's webhooks, or the API server, decided to refuse it.
	denied answer = "denied"
	// closed: a webhook could not be reached, and failurePolicy Fail refused it.
	closed answer = "failed closed"
	// unavailable: the API server could not serve it, or the answer was lost.
	unavailable answer = "unavailable"
)

// judge classifies the answers to requests.
func judge(err error) answer {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return accepted
	case !errors.As(err, &status):
		return unavailable // The connection failed, or the time ran out.
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

// starting matches the refusals of an API server that has not yet read its roles, CRDs, webhook configurations or
// namespaces.
var starting = regexp.MustCompile(`not yet ready to handle request|forbidden: User .* cannot|could not find the requested resource|RBAC: `)

func isStarting(err error) bool { return starting.MatchString(err.Error()) }

// isGoing reports whether an object cannot be created yet, because the one before has finalizers.
func isGoing(err error) bool {
	return apierrors.IsAlreadyExists(err) && strings.Contains(err.Error(), "object is being deleted")
}

// tally collects the wrong answers of a run.
type tally struct {
	requests atomic.Int64
	// apiDown means that the API server may be down, and webhooksDown the webhooks.
	apiDown, webhooksDown atomic.Bool

	mu    sync.Mutex
	wrong []string
}

func (t *tally) wrongly(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrong = append(t.wrong, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// request is a request by a person that should succeed.
type request struct {
	what string
	// mayClose means that one of Muster's fail-closed webhooks checks it.
	mayClose bool
	// do sends the request; again is set on retries, whose earlier attempts may have succeeded.
	do func(ctx context.Context, again bool) error
}

// try sends the request once.
func (t *tally) try(ctx context.Context, do func(context.Context) error) (answer answer, apiDown, webhooksDown bool, err error) {
	t.requests.Add(1)
	apiDown, webhooksDown = t.apiDown.Load(), t.webhooksDown.Load()
	ctx, done := context.WithTimeout(ctx, requestTimeout)
	defer done()
	err = do(ctx)
	// A request that was in flight during a change may have met either state.
	return judge(err), apiDown || t.apiDown.Load(), webhooksDown || t.webhooksDown.Load(), err
}

// ask retries until the answer is final, and reports whether it was accepted. It notes every
// wrong answer.
func (t *tally) ask(ctx context.Context, r request) bool {
	for again := false; ; again = true {
		answer, apiDown, webhooksDown, err := t.try(ctx, func(ctx context.Context) error { return r.do(ctx, again) })
		switch {
		case answer == accepted, ctx.Err() != nil:
			return answer == accepted
		case answer == closed && r.mayClose && webhooksDown:
			return false
		case isGoing(err):
			answer = unavailable
		case answer == closed, answer == denied, !apiDown && !again:
			t.wrongly("%s: %v", r.what, err)
		}
		if answer != unavailable || sleep(ctx, tryAgain) != nil {
			return false
		}
	}
}

// tryForbidden sends a request that must be refused.
func (t *tally) tryForbidden(ctx context.Context, what string, do func(context.Context) error) {
	answer, apiDown, _, err := t.try(ctx, do)
	if answer == accepted || answer == unavailable && !apiDown && ctx.Err() == nil {
		t.wrongly("%s: %s (%v)", what, answer, err)
	}
}
