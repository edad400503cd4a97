package releases

import (
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/installer"
)

// An installer that is killed during a rollback recognizes its own revision the next time.
func TestWayBackHasAMarkOfItsOwn(t *testing.T) {
	c := &Client{namespace: installer.FleetNamespace}
	order := installer.Order{Name: installer.FleetChart, MadeBy: installer.NewRun()}
	forth := c.upgradeTo(action.NewConfiguration(), order)
	back := c.wayBack(action.NewConfiguration(), order, 3)
	if forth.Labels[runLabel] != order.MadeBy {
		t.Errorf("the upgrade is marked %v", forth.Labels)
	}
	if mark := back.Labels[runLabel]; mark == "" || mark == order.MadeBy || back.Description != "Rollback to 3" || back.ResetThenReuseValues || !back.ResetValues {
		t.Errorf("the way back: %+v", back)
	}
}

// A release counts as pending since its newest revision was last written, by whichever manager.
func TestLastWrite(t *testing.T) {
	now := time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)
	at := func(after time.Duration) metav1.ManagedFieldsEntry {
		when := metav1.NewTime(now.Add(after))
		return metav1.ManagedFieldsEntry{Time: &when}
	}
	for name, test := range map[string]struct {
		managed []metav1.ManagedFieldsEntry
		want    time.Duration
	}{
		"made":              {nil, 0},
		"a time is missing": {[]metav1.ManagedFieldsEntry{{}}, 0},
		"changed":           {[]metav1.ManagedFieldsEntry{at(0), at(20 * time.Minute), at(10 * time.Minute)}, 20 * time.Minute},
	} {
		object := &metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now), ManagedFields: test.managed}
		if got := lastWrite(object); !got.Equal(now.Add(test.want)) {
			t.Errorf("%s: %s", name, got.Sub(now))
		}
	}
}
