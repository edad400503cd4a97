package apply

import (
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/sync/desired"
)

func TestLeavesClientID(t *testing.T) {
	drew := func(manager string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{".":{},"f:clientID":{}}}`)}
	}
	rest := metav1.ManagedFieldsEntry{Manager: desired.FieldManager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:agentNamespace":{}}}`)}
	for name, test := range map[string]struct {
		want, have string
		entries    []metav1.ManagedFieldsEntry
		leaves     bool
	}{
		"ours":               {have: "drawn", entries: []metav1.ManagedFieldsEntry{rest, drew(desired.FieldManager)}, leaves: true},
		"Fleet's":            {have: "drawn", entries: []metav1.ManagedFieldsEntry{rest, drew("fleet-controller")}},
		"ours and another's": {have: "drawn", entries: []metav1.ManagedFieldsEntry{drew(desired.FieldManager), drew("admin")}},
		"nobody's":           {have: "drawn", entries: []metav1.ManagedFieldsEntry{rest, {Manager: desired.FieldManager}}},
		"wanted":             {want: "drawn", have: "drawn", entries: []metav1.ManagedFieldsEntry{drew(desired.FieldManager)}},
		"none":               {entries: []metav1.ManagedFieldsEntry{rest}},
	} {
		want := &fleetv1.Cluster{Spec: fleetv1.ClusterSpec{ClientID: test.want}}
		have := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{ManagedFields: test.entries}, Spec: fleetv1.ClusterSpec{ClientID: test.have}}
		if got := leavesClientID(want, have); got != test.leaves {
			t.Errorf("%s: %t, want %t", name, got, test.leaves)
		}
	}
	if leavesClientID(&fleetv1.ClusterGroup{}, &fleetv1.ClusterGroup{}) {
		t.Error("a ClusterGroup has a clientID")
	}
}
