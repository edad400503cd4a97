package observed

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
			if got := echoes.Unheard("FleetImported").Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.passes {
				t.Errorf("passes: %v", got)
			}
		})
	}
	// Events that come before the answer to the write.
	waiting, forged := state("7", "prod", "Waiting"), state("9", "prod", "Forged")
	for name, test := range map[string]struct {
		// earlier is a write that was answered and not heard yet.
		earlier, before, after *clusterv1.Cluster
		answer                 *clusterv1.Cluster
		passes                 bool
		others                 []client.Object
		awaited                int
	}{
		"our own condition":                      {before: waiting, after: written, answer: written},
		"another's later write":                  {before: written, after: forged, answer: written, others: []client.Object{forged}, awaited: 1},
		"another's write, and ours has failed":   {before: written, after: forged, others: []client.Object{forged}},
		"our own, and a change that was skipped": {before: state("5", "dev", "Waiting"), after: written, answer: written, passes: true, awaited: 1},
		"nothing that is cached":                 {before: waiting, after: state("8", "prod", "Waiting"), answer: state("9", "prod", "Waiting"), awaited: 1},
		"our own earlier one":                    {earlier: waiting, before: state("6", "prod", ""), after: waiting, answer: written, awaited: 1},
	} {
		t.Run("early: "+name, func(t *testing.T) {
			echoes := NewEchoes()
			if test.earlier != nil {
				echoes.Wrote(test.earlier)
			}
			answered := echoes.Writing(test.before)
			if got := echoes.Unheard("FleetImported").Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.passes {
				t.Errorf("passes: %v", got)
			}
			if others := echoes.Others(); len(others) != 0 {
				t.Errorf("before the answer it is known that %v is another's", others)
			}
			if test.answer != nil {
				answered(test.answer)
			} else {
				answered(nil)
			}
			if got := echoes.Others(); !slices.Equal(got, test.others) {
				t.Errorf("others: %v", got)
			}
			if len(echoes.Others()) != 0 || len(echoes.writes) != test.awaited || len(echoes.underWay) != 0 {
				t.Errorf("it holds %v, %v, %v", echoes.others, echoes.writes, echoes.underWay)
			}
		})
	}
	t.Run("the last of another's", func(t *testing.T) {
		echoes := NewEchoes()
		answered := echoes.Writing(waiting)
		for _, state := range []*clusterv1.Cluster{forged, state("10", "prod", "Forged again")} {
			echoes.Unheard("FleetImported").Update(event.UpdateEvent{ObjectOld: waiting, ObjectNew: state})
		}
		answered(nil)
		if others := echoes.Others(); len(others) != 1 || others[0].GetResourceVersion() != "10" {
			t.Errorf("others: %v", others)
		}
	})
	t.Run("a condition that is not ours, and a resync", func(t *testing.T) {
		echoes := NewEchoes()
		answered := echoes.Writing(waiting)
		both := written.DeepCopy()
		both.Status.Conditions = append(both.Status.Conditions, metav1.Condition{Type: "FleetAgentManifestReady"})
		for _, news := range []event.UpdateEvent{{ObjectOld: waiting, ObjectNew: both}, {ObjectOld: waiting, ObjectNew: waiting}} {
			if !echoes.Unheard("FleetImported").Update(news) {
				t.Errorf("version %s does not pass", news.ObjectNew.GetResourceVersion())
			}
		}
		answered(nil)
		if others := echoes.Others(); len(others) != 0 {
			t.Errorf("others: %v", others)
		}
	})
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
