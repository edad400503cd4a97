package charts

import (
	"sync"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/metrics"
)

// releaseReasons are all that a release can have, and proxyReasons all that Ready of a
// HelmChartProxy can have.
var (
	releaseReasons = []string{
		plan.ReadyReason,
		addonsv1.PreparingToHelmInstallReason, addonsv1.HelmReleasePendingReason, addonsv1.HelmInstallOrUpgradeFailedReason,
		addonsv1.GetClusterFailedReason, addonsv1.ValueParsingFailedReason, addonsv1.HelmReleaseProxySpecsUpdatingReason,
		addonsv1.HelmReleaseProxyCreationFailedReason, addonsv1.HelmReleaseProxyReinstallingReason,
	}
	proxyReasons = append([]string{addonsv1.ClusterSelectionFailedReason, reasonPeer}, releaseReasons...)
)

// tally counts HelmChartProxies and their releases by how they fare, so that nobody needs to
// walk through them.
type tally struct {
	mu       sync.Mutex
	of       map[plan.Key]fares
	proxies  map[string]int
	releases map[string]int
	lacking  int
}

// fares is how a HelmChartProxy fares.
type fares struct {
	// ready is the reason of Ready; empty if nothing is said.
	ready string
	// lacks says that it has no chart.
	lacks bool
	// releases are the numbers of its releases by reason; nil if it is not known.
	releases map[string]int
}

// newTally returns a tally of nothing. Every reason has a series from the beginning, so that
// the first of a kind shows as an increase.
func newTally() *tally {
	t := &tally{of: map[plan.Key]fares{}, proxies: map[string]int{}, releases: map[string]int{}}
	t.expose()
	return t
}

// set notes how a HelmChartProxy fares. Releases that are not known are what they were.
func (t *tally) set(proxy plan.Key, now fares) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.releases == nil {
		now.releases = t.of[proxy].releases
	}
	t.add(t.of[proxy], -1)
	t.add(now, 1)
	t.of[proxy] = now
	t.expose()
}

// forget notes that a HelmChartProxy is gone, or left alone.
func (t *tally) forget(proxy plan.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(t.of[proxy], -1)
	delete(t.of, proxy)
	t.expose()
}

func (t *tally) add(its fares, sign int) {
	if its.ready != "" {
		t.proxies[its.ready] += sign
	}
	if its.lacks {
		t.lacking += sign
	}
	for reason, count := range its.releases {
		t.releases[reason] += sign * count
	}
}

func (t *tally) expose() {
	for _, reason := range proxyReasons {
		metrics.ChartProxies(reason, t.proxies[reason])
	}
	for _, reason := range releaseReasons {
		metrics.ChartReleases(reason, t.releases[reason])
	}
	metrics.WithoutChart(t.lacking)
}

// fares returns how the HelmChartProxy fares.
func (v *visit) fares() fares {
	its := fares{ready: v.ready, lacks: v.lacks != nil}
	if !v.looked {
		return its
	}
	its.releases = map[string]int{}
	for _, cluster := range v.clusters {
		reason := cluster.outcome.Release.Reason
		if cluster.outcome.Trouble != "" {
			reason = cluster.outcome.Reason
		}
		its.releases[reason]++
	}
	return its
}
