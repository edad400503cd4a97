package installer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Masterminds/semver/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const (
	// FieldManager is the field manager of every write but Helm's own.
	FieldManager = "muster-installer"
	// pollInterval is how often what no event shows is observed: releases, settings, and
	// what the settings are taken from.
	pollInterval = 15 * time.Second
	// conflictInterval is how long to wait for a state that somebody has just written.
	conflictInterval = time.Second
	// troubleLasts is after how long a lasting error is reported.
	troubleLasts = 20 * time.Second
	// mostSteps is more than there are to take.
	mostSteps = 12
)

// Options are the settings of the program.
type Options struct {
	// LookupInterval is how often a repository is asked for newer versions.
	LookupInterval time.Duration
	// HelmTimeout is how long Helm waits until what it has installed is ready.
	HelmTimeout time.Duration
}

// reconciler keeps Fleet as the FleetAddonConfig says: it observes, and takes one step after the
// other until none is left.
type reconciler struct {
	client.Client
	Options
	live       client.Reader // past the cache
	room       *room
	releases   Releases
	repository OpenRepository
	recorder   events.EventRecorder
	kubernetes *semver.Version
	now        func() time.Time
	// rootCA returns the certificate authority of the API server, in PEM.
	rootCA func(context.Context) (string, error)

	hold     hold
	lookups  *lookups
	failures map[string]*failure
	writes   map[step]*written
	// asks identifies the settings with which they failed.
	asks string
	// troubled is since when every observation or step has ended in an error; zero if the last did not.
	troubled time.Time
	// pending are revisions of releases on which somebody works, by the release.
	pending map[string]observation
}

// observation is something, and since when it has been seen.
type observation struct {
	what  string
	since time.Time
}

// Reconcile reconciles the FleetAddonConfig, of which there is one.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	switch {
	case err == nil:
		r.troubled = time.Time{}
		return result, nil
	case ctx.Err() != nil:
		return result, err
	case r.troubled.IsZero():
		r.troubled = r.now()
	}
	if r.now().Sub(r.troubled) < troubleLasts {
		return result, err
	}
	return result, errors.Join(err, r.reportFailure(ctx, req.NamespacedName, err))
}

// advance takes steps until none is left.
func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	for range mostSteps {
		config := &addonsv1.FleetAddonConfig{}
		switch err := r.live.Get(ctx, key, config); {
		case apierrors.IsNotFound(err):
			tally(&config.Status) // Nobody asks for anything.
			return ctrl.Result{}, nil
		case err != nil:
			return ctrl.Result{}, err
		}
		r.heed(config)
		s, err := r.observe(ctx, config)
		if err != nil {
			return ctrl.Result{}, err
		}
		p := s.next()
		switch isFetched, err := r.fetch(ctx, s, &p); {
		case err != nil:
			return ctrl.Result{}, err
		case !isFetched:
			continue
		}
		if err := r.report(ctx, config, s.installedVersion(), &p); err != nil {
			return ctrl.Result{}, err
		}
		if p.step == rest {
			return ctrl.Result{RequeueAfter: r.pause(s, &p)}, nil
		}
		switch err := r.take(ctx, s, &p); {
		case apierrors.IsConflict(err):
			return ctrl.Result{RequeueAfter: conflictInterval}, nil
		case err != nil:
			return ctrl.Result{}, &stepError{p.step, err}
		}
	}
	return ctrl.Result{}, errors.New("no step has led anywhere")
}

// stepError is a step that could not be taken.
type stepError struct {
	step step
	err  error
}

func (e *stepError) Error() string { return fmt.Sprintf("to %s: %v", e.step, e.err) }
func (e *stepError) Unwrap() error { return e.err }

// heed forgets what has failed once something else is asked for: who changes that wants it to
// be tried.
func (r *reconciler) heed(config *addonsv1.FleetAddonConfig) {
	asks := fmt.Sprint(config.UID, " ", config.Generation, " ", config.Annotations[AdoptAnnotation])
	if r.asks == asks {
		return
	}
	r.asks = asks
	clear(r.failures)
	clear(r.writes)
}

// pause is how long nothing needs to be observed.
func (r *reconciler) pause(s *state, p *plan) time.Duration {
	if s.isNothing() {
		return 0
	}
	wait := pollInterval
	if p.later > 0 {
		wait = min(wait, p.later)
	}
	if s.offered != nil {
		wait = min(wait, r.lookups.wait(r.now()))
	}
	return wait
}

// may asks whether the installer may do something to a named object.
func (r *reconciler) may(ctx context.Context, verb, resource string, key types.NamespacedName) (bool, error) {
	return mayI(ctx, r.Client, authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: resource, Namespace: key.Namespace, Name: key.Name})
}
