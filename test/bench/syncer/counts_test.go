package main

import "testing"

func TestCounts(t *testing.T) {
	got, err := countsIn(`# HELP controller_runtime_reconcile_total Total number of reconciliations per controller
controller_runtime_reconcile_total{controller="cluster",result="error"} 1
controller_runtime_reconcile_total{controller="cluster",result="requeue_after"} 500
controller_runtime_reconcile_total{controller="cluster",result="success"} 5000
controller_runtime_reconcile_total{controller="namespace",result="success"} 10
controller_runtime_active_workers{controller="cluster"} 7
controller_runtime_active_workers{controller="namespace"} 0
workqueue_depth{controller="cluster",name="cluster",priority="-100"} 30
workqueue_depth{controller="cluster",name="cluster",priority="0"} 2
workqueue_depth{controller="clustergroup",name="clustergroup",priority="0"} 1
muster_clusters{state="imported"} 4998
muster_clusters{state="pending"} 2
muster_clusters_by_reason{reason="Imported"} 4998
`)
	if want := (counts{looks: 5501, imported: 4998, waiting: 40}); err != nil || got != want {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
}

func TestProgressIsOverWhenAllAreLookedAt(t *testing.T) {
	p := progress{from: counts{looks: 100}}
	for _, step := range []struct {
		now  counts
		over bool
	}{
		{counts{looks: 150, waiting: 50}, false},
		{counts{looks: 199}, false},
		{counts{looks: 200, waiting: 1}, false},
		{counts{looks: 201}, true},
	} {
		if p.over(step.now, 100) != step.over {
			t.Errorf("%+v: over is %v", step.now, !step.over)
		}
	}
}
