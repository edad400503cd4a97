// Package metrics holds Muster's own metrics. Their labels take values from small, fixed
// sets only, so that the number of series does not grow with the clusters.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	clusters = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_clusters",
		Help: "CAPI Clusters by state: imported, pending, conflicted, failed, unselected.",
	}, []string{"state"})

	reasons = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_clusters_by_reason",
		Help: "CAPI Clusters by the reason of their condition FleetImported. Clusters without the condition are left out.",
	}, []string{"reason"})

	conditions = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_config_condition",
		Help: "1 if what a condition of the FleetAddonConfig says holds, 0 if not: APIsAvailable, ConfigValid, InstallerAvailable. Without a FleetAddonConfig, too.",
	}, []string{"condition"})

	applies = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_apply_total",
		Help: "Writes of Fleet objects and of manifests for agents, by kind and result: created, updated, deleted, error.",
	}, []string{"kind", "result"})

	importLatency = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "muster_import_latency_seconds",
		Help:    "Time from a Cluster's control plane being initialized to its Fleet Cluster being made, in seconds, where it waited for nothing else.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
	})

	buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_build_info",
		Help: "1, with which build of the program this is: its version, the commit, and the version of Go.",
	}, []string{"version", "revision", "goversion"})

	admissions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_admission_total",
		Help: "Answers of the webhook, by the path it was called at and result: allowed, denied, or error if it could not decide.",
	}, []string{"webhook", "result"})
)

func init() {
	ctrlmetrics.Registry.MustRegister(clusters, reasons, conditions, applies, importLatency, buildInfo, admissions)
}

// Build records which build of a program this is.
func Build(version, revision, goVersion string) {
	buildInfo.WithLabelValues(version, revision, goVersion).Set(1)
}

// Applied counts a write of a Fleet object; one that failed counts as "error".
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

// Reasons sets the number of Clusters whose condition has a reason.
func Reasons(reason string, count int) { reasons.WithLabelValues(reason).Set(float64(count)) }

// Condition sets whether what a condition says holds.
func Condition(condition string, holds bool) {
	value := 0.0
	if holds {
		value = 1
	}
	conditions.WithLabelValues(condition).Set(value)
}

// Results of an admission request.
const (
	Allowed = "allowed"
	Denied  = "denied"
	Error   = "error"
)

// Admits starts the counters of a webhook at zero, so that the first error is an increase. At
// the start of a series it would not show as one.
func Admits(webhook string) {
	for _, result := range []string{Allowed, Denied, Error} {
		admissions.WithLabelValues(webhook, result)
	}
}

// Admitted counts an answer of a webhook.
func Admitted(webhook, result string) { admissions.WithLabelValues(webhook, result).Inc() }
