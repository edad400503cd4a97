package oracle

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHolder: of two Fleet Clusters for which Fleet derives one namespace, one has it.
func TestHolder(t *testing.T) {
	one := Key{Namespace: "team-a", Name: "production-eu-west-1-payments-cluster-0001"}
	other := Key{Namespace: "team", Name: "a-production-eu-west-1-payments-cluster-00013967"}
	third := Key{Namespace: "team", Name: "production"}
	shared := FleetNamespace(one)
	if want := "cluster-team-a-production-eu-west-1-payments-cluster-0001-a7464"; shared != want || FleetNamespace(other) != want {
		t.Fatalf("%s and %s, not %s", shared, FleetNamespace(other), want)
	}
	at := func(second int64) metav1.Time { return metav1.NewTime(time.Unix(second, 0)) }
	for name, test := range map[string]struct {
		since map[Key]metav1.Time
		made  Key
		want  Key // of one
	}{
		"nobody is there":          {want: one},
		"another one is there":     {since: map[Key]metav1.Time{other: at(1)}, want: other},
		"one of no shared name":    {since: map[Key]metav1.Time{third: at(1)}, want: one},
		"the older":                {since: map[Key]metav1.Time{one: at(2), other: at(1)}, want: other},
		"the younger":              {since: map[Key]metav1.Time{one: at(1), other: at(2)}, want: one},
		"of one second":            {since: map[Key]metav1.Time{one: at(1), other: at(1)}, want: one},
		"one that is yet to come":  {since: map[Key]metav1.Time{one: {}, other: at(1)}, want: other},
		"it was made for itself":   {since: map[Key]metav1.Time{other: at(1)}, made: one, want: one},
		"it was made for another":  {since: map[Key]metav1.Time{one: at(1)}, made: other, want: other},
		"it was made for one gone": {made: other, want: other},
	} {
		s := NewState()
		for key, since := range test.since {
			fleet := &fleetv1.Cluster{}
			fleet.Namespace, fleet.Name, fleet.CreationTimestamp = key.Namespace, key.Name, since
			s.FleetClusters[key] = fleet
		}
		if test.made != (Key{}) {
			s.FleetNamespaces[shared] = test.made
		}
		if got := s.Holder(one); got != test.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
