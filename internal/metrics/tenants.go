package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Both are vectors without labels: a vector has no series until it is set, so a program
// that does not count, or has not counted yet, does not report 0.
var (
	crossNamespaceClass = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_cross_namespace_class_clusters",
		Help: "CAPI Clusters whose class is in another namespace, and which therefore ask for the bundles of that namespace.",
	}, nil)

	released = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "muster_released_fleet_clusters",
		Help: "Fleet Clusters that were released for a move and whose CAPI Cluster is gone: moved, or left over.",
	}, nil)
)

func init() { ctrlmetrics.Registry.MustRegister(crossNamespaceClass, released) }

// CrossNamespaceClassClusters sets the number of Clusters whose class is in another namespace.
func CrossNamespaceClassClusters(count int) {
	crossNamespaceClass.WithLabelValues().Set(float64(count))
}

// ReleasedFleetClusters sets the number of released Fleet Clusters whose Cluster is gone.
func ReleasedFleetClusters(count int) { released.WithLabelValues().Set(float64(count)) }
