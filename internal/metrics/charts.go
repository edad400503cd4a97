package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	chartProxies = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_helmchartproxies_by_reason",
		Help: "HelmChartProxies by the reason of their condition Ready. Those that are paused, or left to others, are left out.",
	}, []string{"reason"})

	chartReleases = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_helmreleases_by_reason",
		Help: "Releases of HelmChartProxies, one for each selected Cluster, by the reason of the condition of its HelmReleaseProxy that says how it fares: ClusterAvailable if something keeps it from Fleet, or else HelmReleaseReady.",
	}, []string{"reason"})

	// A vector without labels: see above.
	withoutChart = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_helmchartproxies_without_chart",
		Help: "HelmChartProxies whose repository has not given the chart, or not said which version is meant, when it was last asked.",
	}, nil)
)

func init() { ctrlmetrics.Registry.MustRegister(chartProxies, chartReleases, withoutChart) }

// ChartProxies sets the number of HelmChartProxies whose Ready has a reason.
func ChartProxies(reason string, count int) {
	chartProxies.WithLabelValues(reason).Set(float64(count))
}

// ChartReleases sets the number of releases that fare so.
func ChartReleases(reason string, count int) {
	chartReleases.WithLabelValues(reason).Set(float64(count))
}

// WithoutChart sets the number of HelmChartProxies that lack their chart.
func WithoutChart(count int) { withoutChart.WithLabelValues().Set(float64(count)) }
