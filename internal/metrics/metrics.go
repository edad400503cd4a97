// Package metrics holds Muster's own metrics. Their labels take values from small
// fixed sets only, so that their number does not grow with the clusters.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	clusters = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_clusters",
		Help: "CAPI Clusters by what became of them: imported, pending, conflicted, failed, unselected.",
	}, []string{"state"})

	applies = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_apply_total",
		Help: "Writes of Fleet objects, by kind and result: created, updated, deleted, error.",
	}, []string{"kind", "result"})

	importLatency = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "muster_import_latency_seconds",
		Help:    "Time from a Cluster's control plane being initialized to its Fleet Cluster being applied for the first time, in seconds.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
	})
)

func init() {
	ctrlmetrics.Registry.MustRegister(clusters, applies, importLatency)
}

// Applied counts a write of a Fleet object, and its failure as "error".
func Applied(kind, result string, err error) {
	if err != nil {
		result = "error"
	}
	applies.WithLabelValues(kind, result).Inc()
}

// Imported observes how long an import took.
func Imported(latency time.Duration) { importLatency.Observe(latency.Seconds()) }

// Clusters sets the number of Clusters in a state.
func Clusters(state string, count int) { clusters.WithLabelValues(state).Set(float64(count)) }
