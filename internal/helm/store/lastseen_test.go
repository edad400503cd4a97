package store

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/muster-fleet/muster/internal/program"
)

// The silence of an agent says nothing about the agent of another Fleet Cluster that gets its name.
func TestLastSeenOfAnotherFleetCluster(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	s := New(c, c, "muster", clock.RealClock{})
	for i, want := range []time.Time{time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC), {}} {
		fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: types.UID(rune('a' + i))}}
		fleet.Status.Agent.LastSeen = metav1.NewTime(want)
		if err := c.Create(t.Context(), fleet); err != nil {
			t.Fatal(err)
		}
		if got, err := s.LastSeen(t.Context(), client.ObjectKeyFromObject(fleet)); err != nil || !got.Equal(want) {
			t.Errorf("Fleet Cluster %s: last seen at %s, %v; want %s", fleet.UID, got, err, want)
		}
		if err := c.Delete(t.Context(), fleet); err != nil {
			t.Fatal(err)
		}
	}
}
