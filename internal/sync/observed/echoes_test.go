package observed

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func TestEchoes(t *testing.T) {
	state := func(version, label string, condition string) *clusterv1.Cluster {
		cluster := &clusterv1.Cluster{}
		cluster.UID, cluster.ResourceVersion = "1", version
		cluster.Labels = map[string]string{"env": label}
		cluster.Status.Conditions = []metav1.Condition{{Type: "FleetImported", Reason: condition}}
		return cluster
	}
	written := state("8", "prod", "Imported")
	for name, test := range map[string]struct {
		before, after *clusterv1.Cluster
		passes        bool
	}{
		"our own condition":                      {before: state("7", "prod", "Waiting"), after: written},
		"another's later write":                  {before: written, after: state("9", "prod", "Forged"), passes: true},
		"our own, and a change that was skipped": {before: state("5", "dev", "Waiting"), after: written, passes: true},
	} {
		t.Run(name, func(t *testing.T) {
			echoes := NewEchoes()
			echoes.Wrote(written)
			if got := echoes.Unheard().Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.passes {
				t.Errorf("passes: %v", got)
			}
		})
	}
	t.Run("once", func(t *testing.T) {
		echoes := NewEchoes()
		echoes.Wrote(written)
		if !echoes.Heard(written) || echoes.Heard(written) {
			t.Error("an echo is heard once, and then never again")
		}
		if echoes.Wrote(written); len(echoes.writes) != 1 {
			t.Errorf("it holds %v", echoes.writes)
		}
		if echoes.Forget(written); len(echoes.writes) != 0 {
			t.Errorf("it holds %v of what is gone", echoes.writes)
		}
	})
}
