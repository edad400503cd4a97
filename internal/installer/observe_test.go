package installer

import (
	"context"
	"testing"
	"time"
)

// found are the releases in the cluster, by name.
type found map[string]*Release

func (f found) Find(_ context.Context, name string) (*Release, error) { return f[name], nil }
func (f found) Put(context.Context, Order) (string, error)            { return "", nil }
func (f found) Abandon(context.Context, string, string) error         { return nil }
func (f found) Manifest(context.Context, string) (string, error)      { return "", nil }

// A release counts as pending since the installer first saw this revision pending.
func TestFindCountsPending(t *testing.T) {
	release := released("0.16.0", nil)
	r := &reconciler{releases: found{FleetChart: release}, pending: map[string]observation{}}
	for i, reading := range []struct {
		after    time.Duration
		revision int
		status   Status
		since    time.Duration
	}{
		{0, 3, "pending-upgrade", 0}, {10 * time.Minute, 3, "pending-upgrade", 0}, {20 * time.Minute, 4, "pending-upgrade", 20 * time.Minute},
		{30 * time.Minute, 4, "pending-rollback", 30 * time.Minute}, {40 * time.Minute, 4, StatusDeployed, -1}, {50 * time.Minute, 4, "pending-rollback", 50 * time.Minute},
	} {
		release.Revision, release.Status, release.Seen = reading.revision, reading.status, time.Time{}
		got, err := r.find(t.Context(), FleetChart, now.Add(reading.after))
		if err != nil {
			t.Fatal(err)
		}
		if want := now.Add(reading.since); reading.since >= 0 && !got.Seen.Equal(want) || reading.since < 0 && !got.Seen.IsZero() {
			t.Errorf("observation %d: seen since %s, want %s", i, got.Seen, want)
		}
	}
}
