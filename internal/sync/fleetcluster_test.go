package sync

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whoever knows a clientID can call as the cluster, so one that can be guessed is drawn anew; but
// not from under an agent that works.
func TestClientID(t *testing.T) {
	const long = "0123456789abcdef"
	for name, test := range map[string]struct {
		had    string
		called bool
		keeps  bool
	}{
		"none":                       {},
		"drawn":                      {had: long, keeps: true},
		"guessed":                    {had: "edge-1"},
		"guessed, of a live agent":   {had: "edge-1", called: true, keeps: true},
		"none, though it has called": {called: true},
	} {
		v := &visit{byAgent: true, fleet: &fleetv1.Cluster{}}
		if v.fleet.Spec.ClientID = test.had; test.called {
			v.fleet.Status.Agent.LastSeen = metav1.NewTime(time.Now())
		}
		got, err := (&clusterReconciler{}).clientID(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		if keeps := got == test.had; keeps != test.keeps || !keeps && len(got) < 26 {
			t.Errorf("%s: %q becomes %q", name, test.had, got)
		}
	}
}
