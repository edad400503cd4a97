package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
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
	groups   *groupReconciler
	mappings *mappingReconciler
	reporter *reporter
	tally    *Tally
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
	if !found {
		r.tally.Forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if !isWatched(cluster, r.watchFilter) {
		return ctrl.Result{}, nil
	}
	if err := removeLegacyFinalizer(ctx, r.Client, cluster); err != nil {
		return ctrl.Result{}, err
	}
	current, err := r.settings.current(ctx)
	if err != nil || !current.Cluster.Enabled {
		return ctrl.Result{}, err
	}
	if !cluster.DeletionTimestamp.IsZero() {
		if !capiannotations.IsPaused(cluster, cluster) {
			// Paused, deleted, unpaused: its Fleet Cluster must go with it after all.
			err = r.reclaim(ctx, current, cluster)
		}
		if apply.IsAbsent(err) {
			err = nil
		}
		return ctrl.Result{}, err
	}

	result, outcome, err := r.sync(ctx, current, cluster)
	if err != nil {
		switch {
		case apply.IsAbsent(err): // The Cluster or its namespace is going.
			return ctrl.Result{}, nil
		case errors.Is(err, errSyncing):
			// The list brings it back, and this time what has gone wrong with the list.
			return ctrl.Result{RequeueAfter: listedPatience}, nil
		case apply.IsUnserved(err):
			result, outcome, err = ctrl.Result{RequeueAfter: unservedInterval}, unserved(err), nil
		case apierrors.IsConflict(err): // We saw an old state; the new one is on its way.
			return ctrl.Result{RequeueAfter: conflictInterval}, nil
		default:
			outcome = failed(err)
		}
	}
	r.tally.Set(req.NamespacedName, outcome.state, outcome.reason())
	return result, errors.Join(err, r.reporter.report(ctx, cluster, outcome))
}

// sync does the work and returns what is to be reported on the Cluster.
func (r *clusterReconciler) sync(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (ctrl.Result, outcome, error) {
	selected, why, err := r.selected(ctx, in, cluster)
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	if capiannotations.IsPaused(cluster, cluster) {
		if !selected && !stamp.PinOf(cluster.Annotations).IsComplete() {
			return ctrl.Result{}, unselected(false, false, why), nil
		}
		return r.pause(ctx, cluster)
	}
	if !selected && stamp.PinOf(cluster.Annotations).IsComplete() && in.Cluster.OnDeselect == addonsv1.DeselectDelete {
		return r.withdraw(ctx, cluster)
	}
	if err := r.stamp(ctx, in, cluster); err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	if !selected {
		if err := r.reclaim(ctx, in, cluster); err != nil {
			return ctrl.Result{}, outcome{}, err
		}
		return ctrl.Result{}, unselected(stamp.PinOf(cluster.Annotations).IsComplete(), r.isImported(ctx, cluster), why), nil
	}
	if err := r.prepareTargets(ctx, cluster); err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	return r.importCluster(ctx, in, cluster)
}

// pause leaves everything of a paused Cluster as it is, but for its owner reference.
func (r *clusterReconciler) pause(ctx context.Context, cluster *clusterv1.Cluster) (ctrl.Result, outcome, error) {
	if err := r.release(ctx, cluster); err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	return ctrl.Result{}, paused(r.isImported(ctx, cluster)), nil
}

// isImported reports whether the Cluster's Fleet Cluster exists.
func (r *clusterReconciler) isImported(ctx context.Context, cluster *clusterv1.Cluster) bool {
	var live fleetv1.Cluster
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	found, err := r.applier.Store.Get(ctx, key, &live)
	ours, _ := belongsTo(&live, cluster)
	return err == nil && found && ours
}

// stamp brings the stamp on the Cluster to what it should be, where the webhook has
// not done so already.
func (r *clusterReconciler) stamp(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) error {
	subject, err := r.subject(ctx, cluster)
	if err != nil {
		return err
	}
	existing := ""
	if !stamp.PinOf(cluster.Annotations).IsComplete() {
		if existing, err = r.existingName(ctx, cluster); err != nil {
			return err
		}
	}
	return patchStamp(ctx, r.Client, r.applier.Store, cluster, stamp.OnSync(in, subject, existing))
}

// existingName returns the name of the Fleet Cluster that already belongs to the
// Cluster, imported before it was pinned (by CAAPF, or its pin was lost).
func (r *clusterReconciler) existingName(ctx context.Context, cluster *clusterv1.Cluster) (string, error) {
	for _, origin := range []string{originUID(cluster.UID), originName(cluster.Name)} {
		var list fleetv1.ClusterList
		if err := r.List(ctx, &list, client.InNamespace(cluster.Namespace), client.MatchingFields{byOrigin: origin},
			client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing Fleet Clusters: %w", err)
		}
		if len(list.Items) > 0 {
			return list.Items[0].Name, nil
		}
	}
	return "", nil
}

// prepareTargets makes the groups and the mapping that the Cluster's bundles are
// targeted through. Fleet does not watch them: they must be there before the Fleet
// Cluster is, or is changed.
func (r *clusterReconciler) prepareTargets(ctx context.Context, cluster *clusterv1.Cluster) error {
	group, mapping := targetKeys(cluster)
	if group.Name != "" {
		if _, err := r.groups.Reconcile(ctx, ctrl.Request{NamespacedName: group}); err != nil {
			return err
		}
	}
	if mapping.Name != "" {
		if _, err := r.mappings.Reconcile(ctx, ctrl.Request{NamespacedName: mapping}); err != nil {
			return err
		}
	}
	return nil
}

// targetKeys returns the keys of the ClusterGroup that a Cluster's class gives it
// in its namespace, and of the mapping if the class lives in another.
func targetKeys(cluster *clusterv1.Cluster) (group, mapping types.NamespacedName) {
	class := cluster.GetClassKey()
	switch {
	case class.Name == "":
		return group, mapping
	case class.Namespace == cluster.Namespace:
		return class, mapping
	default:
		return types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.GroupName(class.Name, class.Namespace)},
			types.NamespacedName{Namespace: class.Namespace, Name: cluster.Namespace}
	}
}

// importCluster brings the Fleet Cluster of a selected, stamped Cluster to what it should be.
func (r *clusterReconciler) importCluster(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (ctrl.Result, outcome, error) {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	var live fleetv1.Cluster
	found, err := r.applier.Store.Get(ctx, key, &live)
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	if found {
		if ours, why := belongsTo(&live, cluster); !ours {
			return ctrl.Result{}, conflicting(why), nil
		}
		if !live.DeletionTimestamp.IsZero() {
			return ctrl.Result{}, notImported(StatePending, reasonDeleting, "the Fleet Cluster is being deleted; it is made again when it is gone"), nil
		}
	} else if !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return ctrl.Result{}, notImported(StatePending, reasonWaiting, "the control plane is not initialized yet; the Cluster is imported into Fleet when it is"), nil
	}

	values, err := r.sources.values(ctx, in, cluster)
	unresolved := ""
	if errors.Is(err, errUnresolved) {
		unresolved = err.Error()
		if !found {
			// A Fleet Cluster without its values would stop every bundle that reads
			// them, for all clusters (Fleet targets with missingkey=error).
			return ctrl.Result{RequeueAfter: unresolvedInterval}, notImported(StatePending, reasonUnresolved, unresolved), nil
		}
		values, err = r.lastGoodValues(ctx, key)
	}
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}

	class, err := classMetadata(ctx, r.Client, cluster.GetClassKey())
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	targets, err := r.targets(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	want := desired.FleetCluster(in, cluster, class, values, targets)
	var have client.Object
	if found {
		have = &live
	}
	result, err := r.applier.Apply(ctx, want, have, in.Cluster.PatchResource)
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	if _, err := r.applier.Store.Get(ctx, key, &live); err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	if result == apply.Created {
		observeLatency(cluster)
		if len(live.ManagedFields) == 1 { // Nobody else has written to it.
			r.reporter.echoes.wrote(&live)
		}
	}
	if found {
		if err := r.disown(ctx, in, cluster, &live); err != nil {
			return ctrl.Result{}, outcome{}, err
		}
		if err := r.reclaim(ctx, in, cluster); err != nil {
			return ctrl.Result{}, outcome{}, err
		}
	}
	if unresolved != "" {
		return ctrl.Result{RequeueAfter: unresolvedInterval}, imported(key.Name, &live, unresolved), nil
	}
	return ctrl.Result{}, imported(key.Name, &live, ""), nil
}

// lastGoodValues reads the template values that a Fleet Cluster has, past the cache,
// which holds their hash only. An apply without them would remove them.
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

// targets returns which group and mapping a Fleet Cluster is targeted through. They are
// noted on it: if one of them is made anew, the note changes, and with it Fleet looks at
// the cluster's bundles again.
func (r *clusterReconciler) targets(ctx context.Context, cluster *clusterv1.Cluster) (desired.Targets, error) {
	groupKey, mappingKey := targetKeys(cluster)
	var group fleetv1.ClusterGroup
	var mapping fleetv1.BundleNamespaceMapping
	if groupKey.Name != "" {
		if _, err := r.applier.Store.Get(ctx, groupKey, &group); err != nil {
			return desired.Targets{}, err
		}
	}
	if mappingKey.Name != "" {
		if _, err := r.applier.Store.Get(ctx, mappingKey, &mapping); err != nil {
			return desired.Targets{}, err
		}
	}
	return desired.Targets{Group: group.UID, Mapping: mapping.UID}, nil
}

// withdraw undoes an import: the Fleet Cluster first, then the pin, so that an
// interruption is taken up again.
func (r *clusterReconciler) withdraw(ctx context.Context, cluster *clusterv1.Cluster) (ctrl.Result, outcome, error) {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	var live fleetv1.Cluster
	found, err := r.applier.Store.Get(ctx, key, &live)
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	if ours, _ := belongsTo(&live, cluster); found && ours {
		if live.DeletionTimestamp.IsZero() {
			if err := r.applier.Delete(ctx, &live); err != nil {
				return ctrl.Result{}, outcome{}, err
			}
		}
	}
	subject, err := r.subject(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, outcome{}, err
	}
	return ctrl.Result{}, unselected(false, false, ""), patchStamp(ctx, r.Client, r.applier.Store, cluster, stamp.WithoutPin(subject))
}

func (r *clusterReconciler) selected(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (bool, string, error) {
	subject, err := r.subject(ctx, cluster)
	if err != nil {
		return false, "", err
	}
	selected, why := stamp.Selected(in.Cluster, stamp.WithClassLabels(subject.Labels, subject.Class), subject.NamespaceLabels)
	return selected, why, nil
}

func (r *clusterReconciler) subject(ctx context.Context, cluster *clusterv1.Cluster) (stamp.Subject, error) {
	namespace := namespaceMetadata()
	if err := r.Get(ctx, client.ObjectKey{Name: cluster.Namespace}, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return stamp.Subject{}, fmt.Errorf("reading Namespace: %w", err)
	}
	return stamp.Subject{
		Name:            cluster.Name,
		Labels:          cluster.Labels,
		Annotations:     cluster.Annotations,
		NamespaceLabels: namespace.Labels,
		Class:           cluster.GetClassKey(),
	}, nil
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
