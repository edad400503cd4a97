package installer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/metrics"
)

const (
	// firstRetry and lastRetry are the shortest and the longest pause after a failed attempt.
	firstRetry = 30 * time.Second
	lastRetry  = 30 * time.Minute
)

// attempt is the last attempt at a step that failed, or at a text that another program may revert.
type attempt struct {
	at time.Time
	// count is how often it failed, or was reverted.
	count int
	// reason says why a chart could not be fetched; it is empty if Helm failed. message is the error, or the text.
	reason, message string
}

// due is when the next attempt is due: at growing intervals, but at once after the first revert, which may be an
// upgrade of the release.
func (a *attempt) due() time.Time {
	if a.count == 0 {
		return a.at
	}
	return a.at.Add(min(lastRetry, firstRetry<<min(a.count-1, 10)))
}

func (r *reconciler) take(ctx context.Context, s *state, p *plan) error {
	ctrl.LoggerFrom(ctx).Info("Taking a step", "step", p.step, "version", text(p.version))
	const left = "left half done, and no Helm client works on it any more"
	switch p.step {
	case ask:
		return r.lookUp(ctx, s)
	case freeCRDs, freeFleet:
		return r.releases.Abandon(ctx, p.chart(), left)
	case putCRDs, putFleet:
		return r.put(ctx, s, p)
	case writeSettings:
		return r.write(ctx, p, s.settings, settingsKey)
	case writeGates:
		return r.write(ctx, p, s.gatesMap, gatesKey)
	default:
		return fmt.Errorf("unknown step %q", p.step)
	}
}

func text(version *semver.Version) string {
	if version == nil {
		return ""
	}
	return version.String()
}

// NewRun returns a random mark for one change of a release (Release.MadeBy).
func NewRun() string { return rand.String(16) }

// order describes the release of a step.
func (r *reconciler) order(s *state, p *plan) Order {
	return Order{
		Name: p.chart(), Archive: p.archive, Values: p.values, MadeBy: NewRun(), KeepObjects: p.step == putCRDs, Adopt: s.adopt, Timeout: r.HelmTimeout,
	}
}

// put installs or upgrades a release. If Helm fails, put records that and returns no error; the
// installer retries later, less and less often.
func (r *reconciler) put(ctx context.Context, s *state, p *plan) error {
	if err := r.room.make(ctx); err != nil {
		return err
	}
	order := r.order(s, p)
	_, err := r.releases.Put(ctx, order)
	metrics.HelmOperation(order.Name, err == nil)
	if err == nil {
		delete(r.attempts, p.what())
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ctrl.LoggerFrom(ctx).Error(err, "Helm failed", "release", order.Name, "version", text(p.version))
	r.fail(p, "", err)
	return nil
}

// fetch downloads the chart of a step that needs one, before anything is reported about the step.
// It reports whether the step can be taken. If not, the installer retries later, less and less
// often.
func (r *reconciler) fetch(ctx context.Context, s *state, p *plan) (_ bool, err error) {
	if p.version == nil { // Only steps that need a chart name a version.
		return true, nil
	}
	if p.archive, err = r.archive(ctx, s, p); err == nil || ctx.Err() != nil {
		return err == nil, ctx.Err()
	}
	problem := &Problem{Reason: addonsv1.RepositoryUnreachableReason}
	errors.As(err, &problem)
	r.fail(p, problem.Reason, unreachable(s.install, err))
	return false, nil
}

func (r *reconciler) archive(ctx context.Context, s *state, p *plan) ([]byte, error) {
	repository, err := r.open(ctx, s.install)
	if err != nil {
		return nil, err
	}
	return repository.Fetch(ctx, p.chart(), p.version)
}

// fail records a failed attempt. The reason is empty if Helm failed.
func (r *reconciler) fail(p *plan, reason string, err error) {
	failed := &attempt{at: r.now(), count: 1, reason: reason, message: err.Error()}
	if last := r.attempts[p.what()]; last != nil && last.reason == reason {
		failed.count += last.count
	}
	r.attempts[p.what()] = failed
}

// write sets one key of a ConfigMap that the installer does not own, unless the ConfigMap has
// changed since the installer read it. All its other bytes stay.
func (r *reconciler) write(ctx context.Context, p *plan, object *corev1.ConfigMap, key string) error {
	changed := object.DeepCopy()
	changed.Data[key] = p.text
	patch := client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, changed, patch, client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", object.Namespace, object.Name, err)
	}
	// Writing the same text again means that another program has reverted it.
	written := &attempt{at: r.now(), message: p.text}
	if last := r.attempts[string(p.step)]; last != nil && last.message == p.text {
		written.count = last.count + 1
	}
	r.attempts[string(p.step)] = written
	return nil
}

// applyAs applies an object that the installer owns.
func applyAs(ctx context.Context, c client.Client, object map[string]any) error {
	configuration := client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: object})
	return c.Apply(ctx, configuration, client.FieldOwner(FieldManager), client.ForceOwnership)
}
