package helm

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/metrics"
)

var (
	releaseReasons = []string{
		addonsv1.ReadyReason, addonsv1.PreparingToHelmInstallReason, addonsv1.HelmReleasePendingReason, addonsv1.HelmInstallOrUpgradeFailedReason,
		addonsv1.GetClusterFailedReason, addonsv1.ReleaseTakenReason, addonsv1.PolicyRefusesReason, addonsv1.ValueParsingFailedReason, addonsv1.HelmReleaseProxySpecsUpdatingReason,
		addonsv1.HelmReleaseProxyCreationFailedReason, addonsv1.HelmReleaseProxyReinstallingReason,
	}
	proxyReasons = append([]string{addonsv1.ClusterSelectionFailedReason, addonsv1.AnotherControllerReason}, releaseReasons...)

	proxiesByReason = metrics.NewGauge("muster_helmchartproxies_by_reason",
		"HelmChartProxies by the reason of their condition Ready, without those that are paused or not managed.", "reason", proxyReasons...)
	releasesByReason = metrics.NewGauge("muster_helmreleases_by_reason",
		"HelmReleaseProxies by the reason of ClusterAvailable if something keeps the release from Fleet, or else of HelmReleaseReady.", "reason", releaseReasons...)
	rolloutsByReason = metrics.NewGauge("muster_helmchartproxies_rollouts_by_reason",
		"HelmChartProxies with spec.rollout by the reason of their condition RolloutCompleted, without those that are paused.", "reason",
		addonsv1.RolloutCompletedReason, addonsv1.RolloutProgressingReason, addonsv1.RolloutSoakingReason,
		addonsv1.RolloutWaitingForApprovalReason, addonsv1.RolloutHaltedReason)
	withoutChart = metrics.NewGauge("muster_helmchartproxies_without_chart",
		"HelmChartProxies whose repository did not return the chart, or the versions to choose from, at the last attempt.", "")
)

// registerCounts registers the metrics that count HelmChartProxies and releases.
func registerCounts(elected <-chan struct{}, reader client.Reader, charts *inputs.Reader) error {
	count := func(ctx context.Context, counts metrics.Counts) error {
		var proxies addonsv1.HelmChartProxyList
		if err := reader.List(ctx, &proxies, client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
		var releases addonsv1.HelmReleaseProxyList
		if err := reader.List(ctx, &releases, client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
		for i := range proxies.Items {
			its := &proxies.Items[i]
			ready := meta.FindStatusCondition(its.Status.Conditions, addonsv1.ReadyCondition)
			if ready != nil && !capiannotations.HasPaused(its) && meta.FindStatusCondition(its.Status.Conditions, addonsv1.NotManagedCondition) == nil {
				counts.Add(proxiesByReason, ready.Reason, 1)
				if completed := meta.FindStatusCondition(its.Status.Conditions, addonsv1.RolloutCompletedCondition); completed != nil {
					counts.Add(rolloutsByReason, completed.Reason, 1)
				}
			}
		}
		for i := range releases.Items {
			counts.Add(releasesByReason, reasonOf(releases.Items[i].Status.Conditions), 1)
		}
		counts.Add(withoutChart, "", charts.WithoutChart())
		return nil
	}
	return metrics.Count(elected, count, proxiesByReason, releasesByReason, rolloutsByReason, withoutChart)
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
