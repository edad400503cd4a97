package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	helmOperations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_helm_operations_total",
		Help: "Installations and upgrades that the installer has tried, by release (fleet-crd, fleet) and result: done, failed.",
	}, []string{"release", "result"})

	fleetInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_fleet_info",
		Help: "1, with the version of Fleet that is there. Without one if there is none.",
	}, []string{"version"})

	fleetConditions = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_fleet_condition",
		Help: "1 for the status and reason that a condition of the installer has, FleetInstalled or FleetConfigured; 0 for every other reason to be False.",
	}, []string{"condition", "status", "reason"})
)

func init() { ctrlmetrics.Registry.MustRegister(helmOperations, fleetInfo, fleetConditions) }

// HelmRelease starts the counters of a release at zero, so that the first failure is an
// increase.
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

// FleetVersion says which version of Fleet is there; empty for none.
func FleetVersion(version string) {
	fleetInfo.Reset()
	if version != "" {
		fleetInfo.WithLabelValues(version).Set(1)
	}
}

// FleetCondition says what a condition of the installer says, of all reasons that it may have;
// nothing if the status is empty.
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
