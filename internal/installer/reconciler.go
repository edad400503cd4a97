package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/Masterminds/semver/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const (
	// FieldManager is the field manager of every write except Helm's.
	FieldManager = "muster-installer"
	// pollInterval is how often the installer observes state for which it gets no events: releases,
	// settings, and the sources of the settings.
	pollInterval = 15 * time.Second
	// conflictInterval is how long to wait after another client changed an object at the same time.
	conflictInterval = time.Second
	// mostErrors is the number of errors in a row after which they are reported: at the queue's intervals, after 25 s.
	mostErrors = 8
	// mostSteps is the maximum number of steps in one reconcile, more than any plan needs.
	mostSteps = 12
)

// Options are the settings of the program.
type Options struct {
	// LookupInterval is how often the installer asks a repository for newer versions.
	LookupInterval time.Duration
	// HelmTimeout is how long Helm waits for an install or upgrade to become ready.
	HelmTimeout time.Duration
}

// reconciler brings Fleet into the state that the FleetAddonConfig describes: it observes, takes a
// step, and starts again until no step is left.
type reconciler struct {
	client.Client
	Options
	live       client.Reader // reads past the cache
	room       *room
	releases   Releases
	repository OpenRepository
	recorder   events.EventRecorder
	kubernetes *semver.Version
	now        func() time.Time
	// rootCA returns the API server's certificate authority, in PEM.
	rootCA func(context.Context) (string, error)

	// limiter is the queue's.
	limiter workqueue.TypedRateLimiter[ctrl.Request]

	last   sighting
	looked looked
	// attempts are described at state.attempts; asks identifies the settings to which they belong.
	attempts map[string]*attempt
	asks     string
}

// Reconcile reconciles the FleetAddonConfig, a singleton.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, at, err := r.advance(ctx, req.NamespacedName)
	if err == nil || ctx.Err() != nil || r.limiter.NumRequeues(req) < mostErrors {
		return result, err
	}
	return result, errors.Join(err, r.reportFailure(ctx, req.NamespacedName, at, err))
}

// advance takes steps until none is left. With an error it returns the step that failed, if one did.
func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (_ ctrl.Result, at step, _ error) {
	for range mostSteps {
		config := &addonsv1.FleetAddonConfig{}
		if there, err := read(ctx, r.live, key, config); err != nil || !there {
			if err == nil {
				tally(&config.Status) // Without a FleetAddonConfig, no condition holds.
			}
			return ctrl.Result{}, rest, err
		}
		r.heed(config)
		s, err := r.observe(ctx, config)
		if err != nil {
			return ctrl.Result{}, rest, err
		}
		p := s.next()
		switch isFetched, err := r.fetch(ctx, s, &p); {
		case err != nil:
			return ctrl.Result{}, rest, err
		case !isFetched:
			continue
		}
		if err := r.report(ctx, config, s.installedVersion(), &p); err != nil {
			return ctrl.Result{}, rest, err
		}
		if p.step == rest {
			return ctrl.Result{RequeueAfter: r.pause(s, &p)}, rest, nil
		}
		switch err := r.take(ctx, s, &p); {
		case apierrors.IsConflict(err):
			return ctrl.Result{RequeueAfter: conflictInterval}, rest, nil
		case err != nil:
			return ctrl.Result{}, p.step, fmt.Errorf("to %s: %w", p.step, err)
		}
	}
	return ctrl.Result{}, rest, fmt.Errorf("not done after %d steps", mostSteps)
}

// heed forgets past attempts when the FleetAddonConfig changes, because its author expects a new one, and attempts of
// long ago.
func (r *reconciler) heed(config *addonsv1.FleetAddonConfig) {
	maps.DeleteFunc(r.attempts, func(_ string, a *attempt) bool { return r.now().Sub(a.at) >= 2*lastRetry })
	asks := fmt.Sprint(config.UID, " ", config.Generation, " ", config.Annotations[AdoptAnnotation])
	if r.asks == asks {
		return
	}
	r.asks = asks
	clear(r.attempts)
	if r.looked.offered != nil && r.looked.err != nil {
		r.looked = looked{}
	}
}

// pause returns how long until the next observation; zero means until an event.
func (r *reconciler) pause(s *state, p *plan) time.Duration {
	if s.isNothing() {
		return 0
	}
	wait := min(pollInterval, cmp.Or(p.later, pollInterval))
	if s.offered != nil {
		wait = min(wait, max(r.looked.due.Sub(r.now()), conflictInterval))
	}
	return wait
}

// may reports whether the installer may use a verb on a named object.
func (r *reconciler) may(ctx context.Context, verb, resource string, key types.NamespacedName) (bool, error) {
	return mayI(ctx, r.Client, authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: resource, Namespace: key.Namespace, Name: key.Name})
}
