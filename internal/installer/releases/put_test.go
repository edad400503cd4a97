package releases

import (
	"testing"

	"helm.sh/helm/v4/pkg/action"

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
