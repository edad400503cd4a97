package bundle

import (
	"context"
	"fmt"
	"sync"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
)

// taking holds who takes which release while the cache does not show the target yet: two Bundles are written at the same
// time, and either may be the first. After a restart, the cache shows all targets.
type taking struct {
	sync.Mutex
	of map[string]taker
}

// taker is a HelmChartProxy, with the Bundle and the Fleet Cluster of the target.
type taker struct {
	proxy, bundle plan.Key
	fleetCluster  string
}

// take returns a new target for a release if no other HelmChartProxy has the release, or comes first; else nil.
func (r *Reconciler) take(ctx context.Context, s *scope, release *addonsv1.HelmReleaseProxy, target *fleetv1.BundleTarget) (*fleetv1.BundleTarget, error) {
	fleetCluster := target.ClusterName
	own, on := client.ObjectKeyFromObject(s.of), s.key.Namespace+"/"+fleetCluster
	id := on + "/" + plan.ReleaseOf(release)
	// The more releases a user asks for on this Cluster, the longer reading takes. Releases on other Clusters do not wait for it.
	defer r.Busy.Lock(on)()
	claims, asking, err := proxy.Claims(ctx, r, release, fleetCluster)
	if err != nil {
		return nil, err
	}
	s.asking = max(s.asking, asking)
	r.taking.Lock()
	defer r.taking.Unlock()
	if its, found := r.taking.of[id]; found {
		claims[its.proxy] = plan.Has
	}
	if _, found := plan.OtherHolder(own, s.key.Namespace, claims); found && claims[own] != plan.Has {
		return nil, nil
	}
	if r.taking.of == nil {
		r.taking.of = map[string]taker{}
	}
	r.taking.of[id] = taker{own, s.key, fleetCluster}
	return target, nil
}

// settle forgets what a Bundle no longer takes: all but its new targets, which the cache does not show yet.
func (r *Reconciler) settle(bundle plan.Key, isNew map[string]bool) {
	r.taking.Lock()
	defer r.taking.Unlock()
	for id, its := range r.taking.of {
		if its.bundle == bundle && !isNew[its.fleetCluster] {
			delete(r.taking.of, id)
		}
	}
}

// settleUnwritten forgets what a Bundle would take that is not written now: its HelmChartProxy is paused, or its inputs cannot
// be had. The cache may not show yet what was written just before.
func (r *Reconciler) settleUnwritten(ctx context.Context, bundle plan.Key) error {
	if !r.isTaking(bundle) {
		return nil
	}
	live := &fleetv1.Bundle{}
	if err := r.Live.Get(ctx, bundle, live); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading a Bundle that may have taken releases: %w", err)
	}
	isWritten := map[string]bool{}
	for i := range live.Spec.Targets {
		isWritten[live.Spec.Targets[i].ClusterName] = true
	}
	r.settle(bundle, isWritten)
	return nil
}

func (r *Reconciler) isTaking(bundle plan.Key) bool {
	r.taking.Lock()
	defer r.taking.Unlock()
	for _, its := range r.taking.of {
		if its.bundle == bundle {
			return true
		}
	}
	return false
}
