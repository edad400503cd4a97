package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// unresolvedInterval is how long to wait before a reference that could not be read
// is tried again; a change of the Cluster or of the object comes sooner by itself.
const unresolvedInterval = 15 * time.Second

// conflictInterval is how long to wait for a state that somebody else has just written.
const conflictInterval = 100 * time.Millisecond

// clusterReconciler keeps the stamp of a CAPI Cluster and its Fleet Cluster.
type clusterReconciler struct {
	client.Client
	live     client.Reader // past the cache
	applier  *apply.Applier
	settings *settingsReader
	sources  *sources
	users    users
	groups   *groupReconciler
	mappings *mappingReconciler
	reporter *reporter
	tally    *Tally
	// busy keeps apart Clusters that want the same Fleet Cluster.
	busy keymutex.KeyMutex
	// watchFilter limits what is looked at; empty for everything.
	watchFilter string
}

// Reconcile brings one Cluster's stamp and Fleet Cluster to what they should be,
// and tells the Cluster's reader how it went.
func (r *clusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	found, err := r.applier.Store.Get(ctx, req.NamespacedName, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !found || !isWatched(cluster, r.watchFilter) {
		r.tally.Forget(req.NamespacedName)
		r.reporter.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if err := removeLegacyFinalizer(ctx, r.Client, cluster); err != nil {
		return ctrl.Result{}, err
	}
	current, usable, err := r.settings.current(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !usable || !current.Cluster.Enabled {
		return ctrl.Result{}, r.hold(ctx, current, cluster)
	}

	result, err := r.sync(ctx, current, cluster)
	switch {
	case err == nil:
	case apply.IsAbsent(err): // The Cluster or its namespace is going.
		return ctrl.Result{}, nil
	case errors.Is(err, errSyncing):
		// The list brings it back, and this time what has gone wrong with the list.
		return ctrl.Result{RequeueAfter: listedPatience}, nil
	case apply.IsUnserved(err):
		result, err = unserved(err).again(unservedInterval), nil
	case apierrors.IsConflict(err): // We saw an old state; the new one is on its way.
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	default:
		result = failed(err)
	}
	if result.state == "" {
		return ctrl.Result{}, err // It is going: nobody counts it any more, or reads its conditions.
	}
	if r.reporter.isPassing(req.NamespacedName, err) {
		return ctrl.Result{}, err // It is tried again, and reported if it lasts.
	}
	r.tally.Set(req.NamespacedName, entry{result.state, result.reason(), !useOf(cluster).isZero()})
	damped, reportErr := r.reporter.report(ctx, cluster, result)
	return ctrl.Result{RequeueAfter: soonest(result.after, damped)}, errors.Join(err, reportErr)
}

// soonest returns the shorter of two delays; zero means never.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// hold keeps everything of a Cluster as it is while the import is turned off, or the
// FleetAddonConfig cannot be used. One thing does not wait: clusterctl moves Clusters
// then as well, and would take their applications along.
func (r *clusterReconciler) hold(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) error {
	v, err := r.visit(ctx, in, cluster)
	switch {
	case err != nil:
	case !v.isClaimed():
	case !v.paused:
		err = r.reclaim(ctx, v)
	case cluster.DeletionTimestamp.IsZero():
		err = r.release(ctx, v)
	}
	if apply.IsAbsent(err) || apply.IsUnserved(err) {
		return nil
	}
	return err
}

// sync does the work and returns what is to be reported on the Cluster.
func (r *clusterReconciler) sync(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (outcome, error) {
	v, err := r.visit(ctx, in, cluster)
	if err != nil {
		return outcome{}, err
	}
	switch {
	case !cluster.DeletionTimestamp.IsZero():
		if v.paused {
			return outcome{}, nil
		}
		// Paused, deleted, unpaused: its Fleet Cluster must go with it after all.
		return outcome{}, r.reclaim(ctx, v)
	case v.paused && !v.selected && !v.isClaimed():
		return unselected(false, false, v.why), nil
	case v.paused:
		// Everything stays as it is, but for the owner reference.
		return paused(v.has()), r.release(ctx, v)
	case !v.selected && v.isClaimed() && in.Cluster.OnDeselect == addonsv1.DeselectDelete:
		return unselected(false, false, ""), r.withdraw(ctx, v)
	}
	if err := r.stamp(ctx, v); err != nil {
		return outcome{}, err
	}
	if !v.selected {
		return unselected(v.isClaimed(), v.has(), v.why), r.reclaim(ctx, v)
	}
	// Of two Clusters that are pinned to one Fleet Cluster, the second sees what the first
	// has made.
	pin := stamp.PinOf(cluster.Annotations).ClusterName
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: pin}.String()
	r.busy.LockKey(key)
	defer func() { _ = r.busy.UnlockKey(key) }() // UnlockKey never fails.
	if !v.has() {
		if err := r.lookAt(ctx, v, pin); err != nil {
			return outcome{}, err
		}
	}
	return r.importCluster(ctx, v)
}

// stamp brings the stamp on the Cluster to what it should be, where the webhook has
// not done so already.
func (r *clusterReconciler) stamp(ctx context.Context, v *visit) error {
	existing := ""
	if v.has() {
		existing = v.fleet.Name
	}
	return patchStamp(ctx, r.Client, r.applier.Store, v.cluster, stamp.OnSync(v.in, v.subject, existing))
}

// importCluster brings the Fleet Cluster of a selected, stamped Cluster to what it should be.
func (r *clusterReconciler) importCluster(ctx context.Context, v *visit) (outcome, error) {
	used := useOf(v.cluster)
	if class, err := r.users.displacing(ctx, v.in, used); err != nil {
		return outcome{}, err
	} else if class != "" {
		return displaced(v.has(), used, class), nil
	}
	// Fleet does not watch what bundles are targeted through: it must be there before the
	// Fleet Cluster is, or is changed.
	targets, err := r.prepareTargets(ctx, v.in, v.cluster, used)
	if err != nil {
		return outcome{}, err
	}
	if v.fleet != nil {
		switch {
		case v.relation == stamp.Foreign:
			return conflicting(v.whose), nil
		case !v.fleet.DeletionTimestamp.IsZero():
			return notImported(StatePending, reasonDeleting, "the Fleet Cluster is being deleted; it is made again when it is gone"), nil
		case v.relation == stamp.Predecessor:
			return notImported(StatePending, reasonDeleting, fmt.Sprintf(
				"Fleet Cluster %q is still that of an earlier Cluster of this name; it is made again when the garbage collector has taken it away", v.fleet.Name)), nil
		}
	}
	isNew := v.fleet == nil || v.relation == stamp.Orphan
	if isNew && !ptr.Deref(v.cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return notImported(StatePending, reasonWaiting, "the control plane is not initialized yet; the Cluster is imported into Fleet when it is"), nil
	}

	values, err := r.sources.values(ctx, v.in, v.cluster)
	unresolved := ""
	var again time.Duration
	if errors.Is(err, errUnresolved) {
		unresolved = err.Error()
		if needsPolling(err) {
			again = unresolvedInterval
		}
		err = nil
		if isNew {
			// A Fleet Cluster without its values would stop every bundle that reads
			// them, for all clusters (Fleet targets with missingkey=error).
			return notImported(StatePending, reasonUnresolved, unresolved).again(again), nil
		}
	}
	if err != nil {
		return outcome{}, err
	}
	if v.relation == stamp.HandedOver || v.relation == stamp.Orphan && v.fleet != nil {
		if err := r.takeOver(ctx, v); err != nil {
			return outcome{}, err
		}
	}
	live, err := r.applyFleetCluster(ctx, v, values, unresolved != "", targets)
	if err != nil {
		return outcome{}, err
	}
	return imported(live.Name, live, unresolved).again(again), nil
}

// prepareTargets makes the group and the mapping that the Cluster's bundles are targeted
// through, and returns which they are. They are noted on the Fleet Cluster: if one of
// them is made anew, the note changes, and with it Fleet looks at the bundles again.
func (r *clusterReconciler) prepareTargets(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster, used use) (desired.Targets, error) {
	group, err := r.groups.ensure(ctx, in, cluster.Namespace, cluster.GetClassKey())
	if err != nil {
		return desired.Targets{}, err
	}
	mapping, err := r.mappings.ensure(ctx, in, used)
	return desired.Targets{Group: group, Mapping: mapping}, err
}

// applyFleetCluster applies the Fleet Cluster and returns it as it is then. If its
// template values cannot be resolved, the last good ones stay.
func (r *clusterReconciler) applyFleetCluster(ctx context.Context, v *visit, values map[string]any, keepValues bool, targets desired.Targets) (*fleetv1.Cluster, error) {
	class, err := classMetadata(ctx, r.Client, v.cluster.GetClassKey())
	if err != nil {
		return nil, err
	}
	var have client.Object
	if v.fleet != nil {
		have = v.fleet
	}
	if keepValues && v.fleet.Spec.TemplateValues != nil {
		values = v.fleet.Spec.TemplateValues.Data // Their hash, which is enough to compare.
	}
	want := desired.FleetCluster(v.in, v.cluster, class, values, targets)
	if keepValues && v.in.Cluster.PatchResource && apply.Differs(want, have) {
		// An apply without them would remove them. They are read past the cache only if
		// there is something to write.
		if values, err = r.lastGoodValues(ctx, client.ObjectKeyFromObject(v.fleet)); err != nil {
			return nil, err
		}
		want = desired.FleetCluster(v.in, v.cluster, class, values, targets)
	}
	written, result, err := r.applier.Apply(ctx, want, have, v.in.Cluster.PatchResource)
	if err != nil {
		return nil, err
	}
	live := written.(*fleetv1.Cluster)
	if result == apply.Created {
		observeLatency(v.cluster)
		if len(live.ManagedFields) == 1 { // Nobody else has written to it.
			r.reporter.echoes.wrote(live)
		}
		return live, nil
	}
	v.fleet = live
	return v.fleet, r.reclaim(ctx, v)
}

// lastGoodValues reads the template values that a Fleet Cluster has, past the cache,
// which holds their hash only.
func (r *clusterReconciler) lastGoodValues(ctx context.Context, key types.NamespacedName) (map[string]any, error) {
	var live fleetv1.Cluster
	if err := r.live.Get(ctx, key, &live); err != nil {
		return nil, fmt.Errorf("reading the template values of Fleet Cluster %s: %w", key, err)
	}
	if live.Spec.TemplateValues == nil {
		return nil, nil
	}
	return live.Spec.TemplateValues.Data, nil
}

// withdraw undoes an import: the Fleet Cluster first, then the pin, so that an
// interruption is taken up again.
func (r *clusterReconciler) withdraw(ctx context.Context, v *visit) error {
	if v.has() && v.fleet.DeletionTimestamp.IsZero() {
		if err := r.applier.Delete(ctx, v.fleet); err != nil {
			return err
		}
	}
	return patchStamp(ctx, r.Client, r.applier.Store, v.cluster, stamp.WithoutPin(v.subject))
}

// isWatched reports whether an object is ours to look at. Events of other objects lead
// to Clusters and classes, too, so a predicate on theirs is not enough.
func isWatched(object client.Object, filter string) bool {
	return filter == "" || capilabels.HasWatchLabel(object, filter)
}

// observeLatency measures the import of a Cluster that waited for nothing but its
// control plane. What was selected, unpaused or made again later says nothing of it.
func observeLatency(cluster *clusterv1.Cluster) {
	if conditions.GetReason(cluster, ImportedCondition) != reasonWaiting {
		return
	}
	if initialized := conditions.Get(cluster, clusterv1.ClusterControlPlaneInitializedCondition); initialized != nil {
		metrics.Imported(time.Since(initialized.LastTransitionTime.Time))
	}
}
