// Package charts carries out HelmChartProxies with Fleet: it selects Clusters, renders the
// values of each, has charts downloaded, writes the Bundles that package plan returns, and
// tells how they fare. It is a program of its own, because it follows URLs that people name
// and reads Secrets that they name.
//
// A look reads everything from caches; what is there is compared with what is to be there,
// and only what differs is written. Nothing has a finalizer: what was made for a
// HelmChartProxy that is gone is found by its labels.
package charts

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/apierror"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/charts/fetch"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// FieldManager is the field manager of every write.
const FieldManager = "muster-charts"

const (
	// conflictInterval is how long to wait for a state that somebody has just written.
	conflictInterval = time.Second
	// pollInterval is how often is looked at what no event tells of: Secrets that values or
	// credentials are read from, and what could not be downloaded.
	pollInterval = 30 * time.Second
)

// referred reads what Clusters refer to.
type referred interface {
	Objects(ctx context.Context, cluster *clusterv1.Cluster) (controlPlane, infrastructure map[string]any, err error)
	Digest(ctx context.Context, cluster *clusterv1.Cluster, digest io.Writer) bool
}

var _ referred = (*sources.Sources)(nil)

// reconciler carries out one HelmChartProxy at a time.
type reconciler struct {
	client.Client
	Options
	live     client.Reader // past the cache
	settings *settings.Reader
	sources  referred
	charts   *fetch.Fetcher
	recorder events.EventRecorder
	now      func() time.Time
	peer     *peer
	rendered *memory
	versions *versions
	large    *large
	traces   *traces
	digests  *digests
	tally    *tally
	pace     *pace
}

// Reconcile looks at one HelmChartProxy.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, req.NamespacedName)
	switch {
	case err == nil:
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // The cache is behind.
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	}
	return result, err
}

func (r *reconciler) reconcile(ctx context.Context, key plan.Key) (ctrl.Result, error) {
	switch ours, err := r.peer.isOurs(ctx); {
	case err != nil:
		r.tally.forget(key)
		return ctrl.Result{}, err
	case !ours:
		r.tally.forget(key)
		return ctrl.Result{}, r.tellLeftAlone(ctx, key)
	}
	proxy := &addonsv1.HelmChartProxy{}
	if err := r.Get(ctx, key, proxy); apierrors.IsNotFound(err) {
		r.peer.forget(key)
		return r.clear(ctx, key)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	// Of those that are not there nothing is remembered: anybody may make up names.
	defer r.pace.during(key)()
	switch {
	case !proxy.DeletionTimestamp.IsZero():
		wrong, err := r.peer.release(ctx, proxy)
		switch {
		case err != nil:
			return ctrl.Result{}, err
		case wrong != "": // Who has put it there is at it.
			return ctrl.Result{RequeueAfter: pollInterval}, nil
		}
		return r.clear(ctx, key)
	case r.WatchFilter != "" && !capilabels.HasWatchLabel(proxy, r.WatchFilter):
		r.tally.forget(key)
		return ctrl.Result{}, nil
	case capiannotations.HasPaused(proxy):
		r.tally.forget(key)
		return ctrl.Result{}, r.disown(ctx, key)
	}
	v := &visit{proxy: proxy.DeepCopy(), key: key}
	plan.Default(v.proxy) // As the webhook has, or would have.
	again, err := r.carryOutAlone(ctx, v)
	if errors.Is(err, errHeld) {
		err = nil
	}
	if err != nil && !v.wrote {
		if isTransient(err) {
			return ctrl.Result{}, err
		}
		v.fail(addonsv1.HelmReleaseProxyCreationFailedReason, err.Error())
	}
	if told := r.tell(ctx, v); told != nil {
		err = errors.Join(err, told)
	}
	r.tally.set(key, v.fares())
	return ctrl.Result{RequeueAfter: again}, err
}

// isTransient reports whether an error will pass without a change of the HelmChartProxy: the cache
// is behind, or the API server is busy.
func isTransient(err error) bool {
	return apierror.IsPassing(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// carryOutAlone carries out what nobody else does.
func (r *reconciler) carryOutAlone(ctx context.Context, v *visit) (time.Duration, error) {
	wrong, err := r.peer.release(ctx, v.proxy)
	if err != nil {
		return 0, err
	}
	if wrong != "" {
		v.fail(reasonPeer, wrong)
		return pollInterval, nil
	}
	return r.carryOut(ctx, v)
}

// carryOut brings what is there to what is to be there. Again is when to look once more
// although nothing happens.
func (r *reconciler) carryOut(ctx context.Context, v *visit) (again time.Duration, err error) {
	if err := r.look(ctx, v); err != nil {
		return 0, err
	}
	if problems := plan.Validate(v.proxy); len(problems) > 0 {
		// What is there stays as it is.
		v.fail(reasonOf(problems[0].Field), bounds.Errors(problems).ToAggregate().Error())
		return 0, nil
	}
	template, err := plan.Parse(v.proxy.Spec.ValuesTemplate)
	if err != nil {
		return 0, err // Validate has said it.
	}
	if err := r.render(ctx, v, template); err != nil {
		return 0, err
	}
	if again, err = r.share(ctx, v, template); err != nil {
		if failed := r.holdAll(ctx, v); failed != nil {
			err = failed
		}
		return again, err
	}
	again = sooner(again, r.download(ctx, v))
	if v.lacks != nil && slices.ContainsFunc(v.bundles, func(its fleetv1.Bundle) bool { return v.isOfOtherRelease(&its) }) {
		// What is installed under another name would be uninstalled, and nothing could follow.
		return again, r.holdAll(ctx, v)
	}
	waiting, err := r.write(ctx, v)
	return sooner(sooner(again, waiting), v.again), err
}

// reasonOf returns the reason for a problem in a field.
func reasonOf(field string) string {
	switch field {
	case "spec.valuesTemplate":
		return addonsv1.ValueParsingFailedReason
	case "spec.clusterSelector", "spec.namespaceSelector":
		return addonsv1.ClusterSelectionFailedReason
	default:
		return addonsv1.HelmReleaseProxyCreationFailedReason
	}
}

func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
