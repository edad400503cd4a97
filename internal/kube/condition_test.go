package kube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSays(t *testing.T) {
	want := metav1.Condition{Type: "FleetImported", Status: "True", Reason: "Imported", ObservedGeneration: 2}
	for name, test := range map[string]struct {
		change func(*metav1.Condition)
		says   bool
	}{
		"the same":             {func(*metav1.Condition) {}, true},
		"since another time":   {func(c *metav1.Condition) { c.LastTransitionTime = metav1.NewTime(time.Unix(1, 0)) }, true},
		"without a generation": {func(c *metav1.Condition) { c.ObservedGeneration = 0 }, true},
		"another generation":   {func(c *metav1.Condition) { c.ObservedGeneration = 1 }, false},
		"another message":      {func(c *metav1.Condition) { c.Message, c.ObservedGeneration = "x", 0 }, false},
		"another status":       {func(c *metav1.Condition) { c.Status = "False" }, false},
	} {
		have := want
		if test.change(&have); Says(&have, want) != test.says {
			t.Errorf("%s: %t", name, !test.says)
		}
	}
	if Says(nil, want) {
		t.Error("none says it")
	}
}
