package metrics

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// gathered returns what the metrics endpoint serves of one metric: labels to value.
func gathered(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(family *dto.MetricFamily) bool { return family.GetName() == name })
	if i < 0 {
		return nil
	}
	result := map[string]float64{}
	for _, metric := range families[i].GetMetric() {
		labels := ""
		for _, label := range metric.GetLabel() {
			labels += label.GetName() + "=" + label.GetValue() + " "
		}
		switch {
		case metric.GetGauge() != nil:
			result[labels] = metric.GetGauge().GetValue()
		case metric.GetCounter() != nil:
			result[labels] = metric.GetCounter().GetValue()
		default:
			result[labels+"count"] = float64(metric.GetHistogram().GetSampleCount())
			result[labels+"sum"] = metric.GetHistogram().GetSampleSum()
		}
	}
	return result
}

// The names and labels are what dashboards are made of.
func TestMetrics(t *testing.T) {
	Clusters("imported", 3)
	Clusters("imported", 2)
	Clusters("pending", 0)
	Applied("Cluster", "created", nil)
	Applied("Cluster", "created", nil)
	Applied("Cluster", "updated", errors.New("no"))
	Imported(1500 * time.Millisecond)

	for name, want := range map[string]map[string]float64{
		"muster_clusters":               {"state=imported ": 2, "state=pending ": 0},
		"muster_apply_total":            {"kind=Cluster result=created ": 2, "kind=Cluster result=error ": 1},
		"muster_import_latency_seconds": {"count": 1, "sum": 1.5},
	} {
		if diff := cmp.Diff(want, gathered(t, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
