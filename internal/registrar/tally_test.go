package registrar

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

func TestTally(t *testing.T) {
	one, two := types.NamespacedName{Namespace: "team", Name: "one"}, types.NamespacedName{Namespace: "team", Name: "two"}
	counts := newTally()
	expect := func(what string, want map[string]float64) {
		t.Helper()
		for _, reason := range reasons {
			got, found := gauge(t, "muster_manifests_by_reason", reason)
			if !found || got != want[reason] {
				t.Errorf("%s: %s is %v (exposed: %v), want %v", what, reason, got, found, want[reason])
			}
		}
	}
	expect("nothing", nil)
	counts.set(one, reasonWaiting)
	counts.set(two, reasonWaiting)
	counts.set(two, reasonWaiting)
	expect("two wait", map[string]float64{reasonWaiting: 2})
	counts.set(one, reasonReady)
	expect("one is ready", map[string]float64{reasonWaiting: 1, reasonReady: 1})
	counts.set(two, "")
	counts.set(two, "")
	expect("the other is gone", map[string]float64{reasonReady: 1})
}

// gauge returns what is exposed of a metric with this reason.
func gauge(t *testing.T, name, reason string) (float64, bool) {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			if label := series.GetLabel(); len(label) == 1 && label[0].GetValue() == reason {
				return series.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}
