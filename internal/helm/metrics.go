package helm

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
)

var (
	proxiesByReason = prometheus.NewDesc("muster_helmchartproxies_by_reason",
		"HelmChartProxies by the reason of their condition Ready, without those that are paused or not managed.", []string{"reason"}, nil)
	releasesByReason = prometheus.NewDesc("muster_helmreleases_by_reason",
		"HelmReleaseProxies by the reason of ClusterAvailable if something keeps the release from Fleet, or else of HelmReleaseReady.", []string{"reason"}, nil)
	rolloutsByReason = prometheus.NewDesc("muster_helmchartproxies_rollouts_by_reason",
		"HelmChartProxies with spec.rollout by the reason of their condition RolloutCompleted, without those that are paused.", []string{"reason"}, nil)
	withoutChart = prometheus.NewDesc("muster_helmchartproxies_without_chart",
		"HelmChartProxies whose repository did not return the chart, or the versions to choose from, at the last attempt.", nil, nil)
)

// collector counts HelmChartProxies and releases by reason, from the cache, at each scrape.
type collector struct {
	client.Reader
	inputs *inputs.Reader
	// elected is closed when this replica leads. Until then, another replica reports.
	elected <-chan struct{}
}

var _ prometheus.Collector = (*collector)(nil)

// Describe describes the metrics.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	to <- proxiesByReason
	to <- releasesByReason
	to <- rolloutsByReason
	to <- withoutChart
}

// releaseReasons, rolloutReasons and proxyReasons have a series from the beginning, so that the first occurrence counts as an
// increase.
var (
	releaseReasons = []string{
		addonsv1.ReadyReason, addonsv1.PreparingToHelmInstallReason, addonsv1.HelmReleasePendingReason, addonsv1.HelmInstallOrUpgradeFailedReason,
		addonsv1.GetClusterFailedReason, addonsv1.ReleaseTakenReason, addonsv1.PolicyRefusesReason, addonsv1.ValueParsingFailedReason, addonsv1.HelmReleaseProxySpecsUpdatingReason,
		addonsv1.HelmReleaseProxyCreationFailedReason, addonsv1.HelmReleaseProxyReinstallingReason,
	}
	rolloutReasons = []string{
		addonsv1.RolloutCompletedReason, addonsv1.RolloutProgressingReason, addonsv1.RolloutSoakingReason,
		addonsv1.RolloutWaitingForApprovalReason, addonsv1.RolloutHaltedReason,
	}
	proxyReasons = append([]string{addonsv1.ClusterSelectionFailedReason, addonsv1.AnotherControllerReason}, releaseReasons...)
)

// Collect sends the metrics.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	var proxies addonsv1.HelmChartProxyList
	var releases addonsv1.HelmReleaseProxyList
	ctx := context.Background()
	if c.List(ctx, &proxies, client.UnsafeDisableDeepCopy) != nil || c.List(ctx, &releases, client.UnsafeDisableDeepCopy) != nil {
		return // The caches have not synced yet.
	}
	counts, rollouts := map[string]int{}, map[string]int{}
	for i := range proxies.Items {
		its := &proxies.Items[i]
		ready := meta.FindStatusCondition(its.Status.Conditions, addonsv1.ReadyCondition)
		if ready != nil && !capiannotations.HasPaused(its) && meta.FindStatusCondition(its.Status.Conditions, addonsv1.NotManagedCondition) == nil {
			counts[ready.Reason]++
			if completed := meta.FindStatusCondition(its.Status.Conditions, addonsv1.RolloutCompletedCondition); completed != nil {
				rollouts[completed.Reason]++
			}
		}
	}
	report(to, rolloutsByReason, rolloutReasons, rollouts)
	report(to, proxiesByReason, proxyReasons, counts)
	counts = map[string]int{}
	for i := range releases.Items {
		counts[reasonOf(releases.Items[i].Status.Conditions)]++
	}
	report(to, releasesByReason, releaseReasons, counts)
	to <- prometheus.MustNewConstMetric(withoutChart, prometheus.GaugeValue, float64(c.inputs.WithoutChart()))
}

func reasonOf(conditions []metav1.Condition) string {
	if available := meta.FindStatusCondition(conditions, addonsv1.ClusterAvailableCondition); available != nil && available.Reason != addonsv1.AvailableReason {
		return available.Reason
	}
	if ready := meta.FindStatusCondition(conditions, addonsv1.HelmReleaseReadyCondition); ready != nil {
		return ready.Reason
	}
	return addonsv1.PreparingToHelmInstallReason
}

// report reports only known reasons: a reason that another writer puts into a status gets no series.
func report(to chan<- prometheus.Metric, of *prometheus.Desc, reasons []string, counts map[string]int) {
	for _, reason := range reasons {
		to <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, float64(counts[reason]), reason)
	}
}
