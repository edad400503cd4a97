package sync

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func TestUnimported(t *testing.T) {
	having := func(status metav1.ConditionStatus) *clusterv1.Cluster {
		cluster := &clusterv1.Cluster{}
		if status != "" {
			cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: status}}
		}
		return cluster
	}
	for name, test := range map[string]struct {
		got, want bool
	}{
		"found at a start, new":          {unimported.Create(event.CreateEvent{Object: having(""), IsInInitialList: true}), true},
		"found at a start, not imported": {unimported.Create(event.CreateEvent{Object: having(metav1.ConditionFalse), IsInInitialList: true}), true},
		"found at a start, imported":     {unimported.Create(event.CreateEvent{Object: having(metav1.ConditionTrue), IsInInitialList: true}), false},
		"created later":                  {unimported.Create(event.CreateEvent{Object: having("")}), false},
		"changed":                        {unimported.Update(event.UpdateEvent{ObjectOld: having(""), ObjectNew: having("")}), false},
		"deleted":                        {unimported.Delete(event.DeleteEvent{Object: having("")}), false},
	} {
		if test.got != test.want {
			t.Errorf("%s: %t", name, test.got)
		}
	}
}
