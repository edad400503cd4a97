package metrics

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every reason to be False is there, at 0, before it is one; of those to be True only the one
// that is.
func TestFleetCondition(t *testing.T) {
	const name = "muster_fleet_condition"
	reasons := []string{"Broken", "Busy"}
	for _, test := range []struct {
		status, reason string
		want           map[string]float64
	}{
		{"", "", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 0}},
		{"False", "Busy", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 1}},
		{"True", "There", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 0, "There status=True ": 1}},
		{"True", "Busy", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 0, "Busy status=True ": 1}},
		{"False", "Broken", map[string]float64{"Broken status=False ": 1, "Busy status=False ": 0}},
	} {
		FleetCondition("C", test.status, test.reason, reasons)
		want := map[string]float64{}
		for labels, value := range test.want {
			want["condition=C reason="+labels] = value
		}
		if diff := cmp.Diff(want, gathered(t, name)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", test.status, test.reason, diff)
		}
	}
}

// The first failure is an increase, and of versions only the last is there.
func TestHelmAndFleet(t *testing.T) {
	HelmRelease("fleet")
	HelmOperation("fleet", false)
	HelmOperation("fleet", false)
	FleetVersion("0.16.0")
	FleetVersion("0.17.0")
	for name, want := range map[string]map[string]float64{
		"muster_helm_operations_total": {"release=fleet result=done ": 0, "release=fleet result=failed ": 2},
		"muster_fleet_info":            {"version=0.17.0 ": 1},
	} {
		if diff := cmp.Diff(want, gathered(t, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	FleetVersion("")
	if left := gathered(t, "muster_fleet_info"); len(left) > 0 {
		t.Errorf("no Fleet is there, and %v", left)
	}
}
