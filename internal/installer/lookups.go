package installer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/authority"
)

// lookups remembers what repositories answered, so that they are asked once in an interval
// whatever else changes.
type lookups struct {
	interval time.Duration
	// of is what was asked for last, due when it is asked for again.
	of  string
	due time.Time
	// generation is that of the FleetAddonConfig that it was asked for.
	generation int64
	answer     offered
	backoff    workqueue.TypedRateLimiter[string]
}

func newLookups(interval time.Duration) *lookups {
	return &lookups{interval: interval, backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Second, time.Minute)}
}

func (i *install) lookup() string { return fmt.Sprint(i.repository, " ", i.secret, " ", i.text) }

// known returns what is known of a repository, nil if it is to be asked. Who changes anything
// while it cannot be read wants it to be tried.
func (l *lookups) known(in *install, generation int64, now time.Time) *offered {
	isTried := l.answer.err != nil && l.generation != generation
	if l.of != in.lookup() || !now.Before(l.due) || isTried {
		return nil
	}
	return ptr.To(l.answer)
}

// wait is for how long the answer holds.
func (l *lookups) wait(now time.Time) time.Duration { return max(l.due.Sub(now), time.Second) }

// keep notes an answer. An error is asked about sooner.
func (l *lookups) keep(s *sight, offers []Offer, err error) {
	key, now := s.install.lookup(), s.now
	if l.generation != s.generation {
		l.backoff.Forget(key)
	}
	l.of, l.answer, l.generation = key, offered{offers, err}, s.generation
	if err != nil {
		l.due = now.Add(l.backoff.When(key))
		return
	}
	l.backoff.Forget(key)
	l.due = now.Add(l.interval)
}

// lookUp asks the repository which versions of both charts it has.
func (r *reconciler) lookUp(ctx context.Context, s *sight) error {
	offers, err := r.offers(ctx, s.install)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.lookups.keep(s, offers, unreachable(s.install, err))
	return nil
}

// unreachable names the repository in an error that says nothing more of it.
func unreachable(in *install, err error) error {
	var problem *Problem
	if err == nil || errors.As(err, &problem) {
		return err
	}
	return fmt.Errorf("%s cannot be reached: %w", in.repository, err)
}

func (r *reconciler) offers(ctx context.Context, in *install) ([]Offer, error) {
	repository, err := r.open(ctx, in)
	if err != nil {
		return nil, err
	}
	fleet, err := repository.Offers(ctx, FleetChart)
	if err != nil {
		return nil, err
	}
	crds, err := repository.Offers(ctx, CRDChart)
	if err != nil {
		return nil, err
	}
	return both(fleet, crds), nil
}

// open opens the repository with the credentials in its Secret.
func (r *reconciler) open(ctx context.Context, in *install) (Repository, error) {
	var credentials Credentials
	if in.secret.Name != "" {
		data, problem, err := r.secret(ctx, in.secret)
		if err != nil {
			return nil, err
		}
		if problem != nil {
			return nil, &Problem{ReasonSecretUnusable, "spec.install.repositorySecretRef: " + problem.Message}
		}
		credentials = Credentials{Username: string(data["username"]), Password: string(data["password"]), Token: string(data["token"]), CA: data[authority.Key]}
	}
	return r.repository(in.repository, credentials)
}
