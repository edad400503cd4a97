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
	of      string
	due     time.Time
	answer  offered
	backoff workqueue.TypedRateLimiter[string]
}

func newLookups(interval time.Duration) *lookups {
	return &lookups{interval: interval, backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Second, time.Minute)}
}

func (i *install) lookup() string { return fmt.Sprint(i.repository, " ", i.secret, " ", i.text) }

// known returns what is known of a repository, nil if it is to be asked.
func (l *lookups) known(in *install, now time.Time) *offered {
	if l.of != in.lookup() || !now.Before(l.due) {
		return nil
	}
	return ptr.To(l.answer)
}

// wait is for how long the answer holds.
func (l *lookups) wait(now time.Time) time.Duration { return max(l.due.Sub(now), time.Second) }

// keep notes an answer. An error is asked about sooner.
func (l *lookups) keep(in *install, offers []Offer, err error, now time.Time) {
	key := in.lookup()
	l.of, l.answer = key, offered{offers, err}
	if err != nil {
		l.due = now.Add(l.backoff.When(key))
		return
	}
	l.backoff.Forget(key)
	l.due = now.Add(l.interval)
}

// lookUp asks the repository which versions of both charts it has.
func (r *reconciler) lookUp(ctx context.Context, in *install) error {
	offers, err := r.offers(ctx, in)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var problem *Problem
	if err != nil && !errors.As(err, &problem) {
		err = fmt.Errorf("%s cannot be reached: %w", in.repository, err)
	}
	r.lookups.keep(in, offers, err, r.now())
	return nil
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
