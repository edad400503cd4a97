package installer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Masterminds/semver/v3"
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
	// pollInterval is how often the installer observes what it may not watch: releases, settings, and the sources of the
	// settings, all of which it reads by name. It is also the shortest pause after a failed attempt.
	pollInterval = 15 * time.Second
	// lastRetry is the longest pause after a failed attempt: no event says that a repository answers again, or that a
	// chart can be installed now.
	lastRetry = 30 * time.Minute
	// mostErrors is the number of errors in a row after which they are reported: at the queue's intervals, after 20 s.
	mostErrors = 12
	// mostSteps is the maximum number of steps in one reconcile, more than any plan needs.
	mostSteps = 12
)

// Options are the settings of the program, which its flags describe.
type Options struct{ LookupInterval, HelmTimeout time.Duration }

// reconciler brings Fleet into the state that the FleetAddonConfig describes.
type reconciler struct {
	client.Client
	Options
	live client.Reader // reads past the cache
	// namespace is the installer's own. It is empty in a preview: a person has rights already, so nothing is bound.
	namespace  string
	releases   Releases
	repository OpenRepository
	recorder   events.EventRecorder
	kubernetes *semver.Version
	now        func() time.Time
	// rootCA returns the API server's certificate authority, in PEM.
	rootCA func(context.Context) (string, error)
	// limiter is the queue's.
	limiter workqueue.TypedRateLimiter[ctrl.Request]

	last sighting
	// attempts are described at state.attempts; asks identifies the settings to which they belong.
	attempts map[string]*attempt
	asks     string
}

// Reconcile reconciles the FleetAddonConfig, a singleton.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, at, err := r.advance(ctx, req.NamespacedName)
	switch {
	case err != nil && s != nil && ctx.Err() == nil && r.limiter.NumRequeues(req) >= mostErrors:
		return ctrl.Result{}, errors.Join(err, r.report(ctx, s.config, s.config.Status.InstalledVersion, s.failing(at, err)))
	case err == nil && s == nil:
		tally(&addonsv1.FleetAddonConfigStatus{}) // Without a FleetAddonConfig, no condition holds.
		return ctrl.Result{}, nil
	case err != nil, s.isNothing():
		return ctrl.Result{}, err
	default:
		return ctrl.Result{RequeueAfter: min(pollInterval, r.LookupInterval)}, nil
	}
}

// advance takes steps until none is left. With an error it returns the step that failed, if one did. The state is nil
// without a FleetAddonConfig.
func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (s *state, at step, err error) {
	for range mostSteps {
		config := &addonsv1.FleetAddonConfig{}
		if there, err := read(ctx, r.live, key, config); err != nil || !there {
			return nil, rest, err
		}
		s = newState(config)
		if err = r.observe(ctx, s); err != nil {
			return s, rest, err
		}
		p := s.next()
		if p.version != nil { // Only a step that needs a chart names a version. The download comes before any report.
			if p.archive, err = r.archive(ctx, s, &p); err != nil {
				if err = r.fail(ctx, p.what(), s.install.problem(err)); err != nil {
					return s, rest, err
				}
				continue
			}
		}
		if err = r.report(ctx, config, s.installedVersion(), &p); err != nil || p.step == rest {
			return s, rest, err
		}
		if err = r.take(ctx, s, &p); err != nil {
			return s, p.step, fmt.Errorf("to %s: %w", p.step, err)
		}
	}
	return s, rest, fmt.Errorf("not done after %d steps", mostSteps)
}
