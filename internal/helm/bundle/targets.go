package bundle

import (
	"cmp"
	"context"
	"maps"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
)

// targets returns the wanted targets of a Bundle, sorted, and whether it turned a release away. A target without a
// HelmReleaseProxy is removed if its Cluster no longer exists or is no longer selected. Otherwise, the
// HelmReleaseProxy or its record was lost, and Muster recreates it: the target stays.
func (r *Reconciler) targets(ctx context.Context, s *scope) (targets []fleetv1.BundleTarget, isTurnedAway bool, err error) {
	there, wanted, leaving := map[string]*fleetv1.BundleTarget{}, map[string]*fleetv1.BundleTarget{}, map[string]bool{}
	if s.have != nil {
		for i := range s.have.Spec.Targets {
			there[s.have.Spec.Targets[i].ClusterName] = &s.have.Spec.Targets[i]
		}
	}
	for _, release := range s.releases {
		record := plan.RecordOf(release)
		name := record.FleetCluster
		target, err := r.target(ctx, s, release, record, there[name])
		if err != nil {
			return nil, false, err
		}
		isDeleted := !release.DeletionTimestamp.IsZero()
		if target != nil {
			wanted[name] = target
		}
		leaving[name] = target == nil
		isTurnedAway = isTurnedAway || isDeleted == (target != nil) // No event shows when the target may be added or removed.
	}
	for name, target := range there {
		if wanted[name] != nil {
			continue
		}
		isKept, err := r.isKept(ctx, s, name, leaving[name])
		if err != nil {
			return nil, false, err
		}
		if isKept {
			wanted[name] = target
		}
	}
	isNew := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		targets = append(targets, *wanted[name])
		isNew[name] = there[name] == nil
	}
	r.settle(s.key, isNew)
	return targets, isTurnedAway, nil
}

// isKept reports whether a target stays that has no HelmReleaseProxy, or whose HelmReleaseProxy is leaving. It stays
// if its Fleet Cluster is released, because the Cluster moves to another management cluster and lives on. Otherwise it
// stays if nothing is leaving, its Cluster is selected, and its release belongs in this Bundle.
func (r *Reconciler) isKept(ctx context.Context, s *scope, fleetCluster string, isLeaving bool) (bool, error) {
	key := plan.Key{Namespace: s.key.Namespace, Name: fleetCluster}
	fleet, err := r.FleetCluster(ctx, key)
	if err != nil || fleet == nil {
		return false, err
	}
	if !isLeaving && s.of.DeletionTimestamp.IsZero() {
		if s.in.Selector == nil { // The selection is unknown.
			return true, nil
		}
		cluster := store.ClusterOf(fleet)
		isTarget, err := r.isTarget(ctx, s, cluster, fleetCluster)
		if err != nil || isTarget && (s.in.Incomplete || plan.IsBundleOf(s.of, cluster, s.key.Name)) {
			return isTarget, err
		}
	}
	_, isReleased, err := r.LiveFleetCluster(ctx, key)
	return isReleased, err
}

// target returns the target for a release, nil for none; last is its current target. An unchanged target was
// checked when it was added. If the target must not change, or the HelmReleaseProxy is not reliable any more, the
// current target stays until the HelmReleaseProxy or the Fleet Cluster is deleted.
func (r *Reconciler) target(ctx context.Context, s *scope, release *addonsv1.HelmReleaseProxy, record plan.Record, last *fleetv1.BundleTarget) (*fleetv1.BundleTarget, error) {
	target, ok := plan.TargetOf(s.of, release, record)
	isDeleted := !release.DeletionTimestamp.IsZero()
	if target.ClusterName == "" || isDeleted && s.have == nil {
		return nil, nil
	}
	if isLost, err := r.isLost(ctx, s, release, record, cmp.Or(last, &target)); isLost || err != nil {
		return nil, err
	}
	switch {
	case record.Digest != "" && s.have != nil && record.Bundle != s.have.UID && !isDeleted:
		return last, nil // Its values are deleted with an earlier Bundle; the release writes them again.
	case isDeleted && record.Leaving != plan.Emptied:
		deployment, err := r.Deployment(ctx, s.key, target.ClusterName)
		if err != nil || !plan.MustBeEmptied(record, s.have, deployment) {
			return nil, err
		}
		return last, nil // The release controller records it first.
	case isDeleted && last != nil && ok:
		return &target, nil
	case !ok, isDeleted, s.in.Incomplete, last != nil && equality.Semantic.DeepEqual(*last, target), proxy.IsOutdated(s.of, release):
		return last, nil
	}
	if isTarget, err := r.isTarget(ctx, s, plan.ClusterOf(release), target.ClusterName); err != nil || !isTarget {
		return last, err
	}
	if last != nil {
		return &target, nil
	}
	return r.take(ctx, s, release, &target)
}

// isLost reports whether the Fleet Cluster of a target is gone: a new one of that name would get the release. isLost also
// reports whether a new one is there already, and the target names values that do not exist and cannot be rendered for it:
// as long as there is such a target, Fleet deploys nothing from the Bundle to anybody.
func (r *Reconciler) isLost(ctx context.Context, s *scope, release *addonsv1.HelmReleaseProxy, record plan.Record, target *fleetv1.BundleTarget) (bool, error) {
	if plan.IsInstalledOnce(s.of, release) {
		return false, nil
	}
	fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: s.key.Namespace, Name: target.ClusterName})
	if err != nil || fleet == nil {
		return true, err
	}
	if record.Fleet == "" || record.Fleet == fleet.UID || len(target.DownstreamResources) == 0 || !plan.CannotRender(release) {
		return false, nil
	}
	values := target.DownstreamResources[0]
	found, err := r.HasValues(ctx, plan.Key{Namespace: s.key.Namespace, Name: values.Name}, values.Kind == plan.SecretKind)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "The target stays")
	}
	return err == nil && !found, nil
}

// isTarget reports whether a Cluster is selected and a Fleet Cluster belongs to it. The HelmReleaseProxy alone
// is no proof: it may be forged.
func (r *Reconciler) isTarget(ctx context.Context, s *scope, key plan.Key, fleetCluster string) (bool, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if s.in.Selector == nil || !s.in.Selector.Matches(cluster, proxy.NamespaceLabels(ctx, r.Client)) {
		return false, nil
	}
	return r.IsOwnFleetCluster(ctx, cluster, fleetCluster)
}
