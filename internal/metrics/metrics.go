// Package metrics holds Muster's own metrics. Their labels take values from small, fixed
// sets only, so that the number of series does not grow with the clusters.
package metrics

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	conditions = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_config_condition",
		Help: "1 if a condition of the FleetAddonConfig is True, otherwise 0: APIsAvailable, ConfigValid, InstallerAvailable. Also without a FleetAddonConfig.",
	}, []string{"condition"})

	applies = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_apply_total",
		Help: "Writes of Fleet objects and of manifests for agents, by kind and result: created, updated, deleted, error.",
	}, []string{"kind", "result"})

	importLatency = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "muster_import_latency_seconds",
		Help:    "Seconds from the initialization of a Cluster's control plane to the creation of its Fleet Cluster, for Clusters that waited for nothing else.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
	})

	buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_build_info",
		Help: "Always 1; the labels are the version of the program, the commit, and the version of Go.",
	}, []string{"version", "revision", "goversion"})

	admissions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_admission_total",
		Help: "Answers of the webhook, by the path it was called at and result: allowed, denied, or error if it could not decide.",
	}, []string{"webhook", "result"})
)

func init() {
	ctrlmetrics.Registry.MustRegister(conditions, applies, importLatency, buildInfo, admissions)
}

// Build records the build of this program.
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

// Imported observes the duration of an import.
func Imported(latency time.Duration) { importLatency.Observe(latency.Seconds()) }

// Condition records whether a condition is True.
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

// Admits starts the counters of a webhook at zero, so that Prometheus sees the first error as an increase: the
// first value of a new series is not one.
func Admits(webhook string) {
	for _, result := range []string{Allowed, Denied, Error} {
		admissions.WithLabelValues(webhook, result)
	}
}

// Admitted counts an answer of a webhook.
func Admitted(webhook, result string) { admissions.WithLabelValues(webhook, result).Inc() }

// configMissing is a vector without labels: it has no series until it is set, so a program that does not know does not
// report 0.
var configMissing = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "muster_config_missing",
	Help: "1 if there was a FleetAddonConfig, and has been none for more than a minute, so that its settings are unknown; otherwise 0.",
}, nil)

func init() { ctrlmetrics.Registry.MustRegister(configMissing) }

// ConfigMissing sets whether the FleetAddonConfig is gone.
func ConfigMissing(isMissing bool) {
	value := 0.0
	if isMissing {
		value = 1
	}
	configMissing.WithLabelValues().Set(value)
}

// Certificate exposes when a certificate of the webhook, "mounted" or "served", expires. Each scrape reads
// it; the series is missing while read returns an error.
func Certificate(certificate string, read func() (*x509.Certificate, error)) error {
	return ctrlmetrics.Registry.Register(&certificateEnd{
		description: prometheus.NewDesc("muster_webhook_certificate_expiry_timestamp_seconds",
			"When a certificate of the webhook expires, in seconds since 1970: the mounted one, and the served one.",
			nil, prometheus.Labels{"certificate": certificate}),
		read: read,
	})
}

type certificateEnd struct {
	description *prometheus.Desc
	read        func() (*x509.Certificate, error)
}

// Describe implements prometheus.Collector.
func (c *certificateEnd) Describe(to chan<- *prometheus.Desc) { to <- c.description }

// Collect implements prometheus.Collector.
func (c *certificateEnd) Collect(to chan<- prometheus.Metric) {
	if certificate, err := c.read(); err == nil {
		to <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, float64(certificate.NotAfter.Unix()))
	}
}

var (
	helmOperations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_installer_operations_total",
		Help: "Installations and upgrades that the installer has tried, by release (fleet-crd, fleet) and result: done, failed.",
	}, []string{"release", "result"})

	fleetInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_fleet_info",
		Help: "Always 1; the label is the installed version of Fleet. There is no series without Fleet.",
	}, []string{"version"})

	fleetConditions = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_fleet_condition",
		Help: "1 for the current status and reason of each condition of the installer, FleetInstalled and FleetConfigured; 0 for every other reason with which it could be False.",
	}, []string{"condition", "status", "reason"})
)

func init() { ctrlmetrics.Registry.MustRegister(helmOperations, fleetInfo, fleetConditions) }

// HelmRelease starts the counters of a release at zero, so that Prometheus sees the first failure as an increase.
func HelmRelease(release string) {
	for _, result := range []string{"done", "failed"} {
		helmOperations.WithLabelValues(release, result)
	}
}

// HelmOperation counts an installation or upgrade.
func HelmOperation(release string, done bool) {
	result := "failed"
	if done {
		result = "done"
	}
	helmOperations.WithLabelValues(release, result).Inc()
}

// FleetVersion sets the installed version of Fleet; empty if there is none.
func FleetVersion(version string) {
	fleetInfo.Reset()
	if version != "" {
		fleetInfo.WithLabelValues(version).Set(1)
	}
}

// FleetCondition sets the metric of one of the installer's conditions, with a series for each reason that it
// can have while False. With an empty status they are all 0.
func FleetCondition(condition, status, reason string, reasons []string) {
	for _, other := range reasons {
		value := 0.0
		if status == "False" && reason == other {
			value = 1
		}
		fleetConditions.WithLabelValues(condition, "False", other).Set(value)
	}
	fleetConditions.DeletePartialMatch(prometheus.Labels{"condition": condition, "status": "True"})
	if status == "True" {
		fleetConditions.WithLabelValues(condition, status, reason).Set(1)
	}
}

var upgradeHolds = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "muster_upgrade_holds_total",
	Help: "Upgrades of CAPI Clusters that Muster held, or should have held, by how the hold ended: the reason of the condition FleetUpgradeHeld.",
}, []string{"end"})

func init() { ctrlmetrics.Registry.MustRegister(upgradeHolds) }

// UpgradeHoldEnded counts the end of a hold.
func UpgradeHoldEnded(end string) { upgradeHolds.WithLabelValues(end).Inc() }
