package observed

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func TestNews(t *testing.T) {
	state := func(version, label, condition string) *clusterv1.Cluster {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version, Labels: map[string]string{"env": label}}}
		cluster.Status.Conditions = []metav1.Condition{{Type: "FleetImported", Reason: condition}}
		return cluster
	}
	before := state("7", "prod", "Waiting")
	for name, test := range map[string]struct {
		after  *clusterv1.Cluster
		passes bool
	}{
		"nothing that is cached": {state("8", "prod", "Waiting"), false},
		"a resync":               {state("7", "prod", "Waiting"), true},
		"a condition":            {state("8", "prod", "Imported"), true},
		"a label":                {state("8", "dev", "Waiting"), true},
	} {
		if got := News.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: test.after}); got != test.passes {
			t.Errorf("%s passes: %v", name, got)
		}
	}
}
