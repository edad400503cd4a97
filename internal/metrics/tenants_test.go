package metrics

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Who has not counted says nothing: "none" would be a claim.
func TestTenantMetrics(t *testing.T) {
	for name, set := range map[string]func(int){
		"muster_cross_namespace_class_clusters": CrossNamespaceClassClusters,
		"muster_released_fleet_clusters":        ReleasedFleetClusters,
	} {
		if got := gathered(t, name); got != nil {
			t.Errorf("%s is exposed before it is counted: %v", name, got)
		}
		set(3)
		set(0)
		set(2)
		if diff := cmp.Diff(map[string]float64{"": 2}, gathered(t, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
