package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

var manifests = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "muster_manifests_by_reason",
	Help: "CAPI Clusters by the reason of their condition FleetAgentManifestReady. Clusters without the condition are left out.",
}, []string{"reason"})

func init() { ctrlmetrics.Registry.MustRegister(manifests) }

// Manifests sets the number of Clusters whose FleetAgentManifestReady has a reason.
func Manifests(reason string, count int) { manifests.WithLabelValues(reason).Set(float64(count)) }
