package metrics

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Only the leader reports, and only what it could count: 0 would be a statement. Values that are not announced have no series.
func TestCount(t *testing.T) {
	byReason, all := NewGauge("muster_test_by_reason", "Help.", "reason", "A", "B"), NewGauge("muster_test", "Help.", "")
	elected, problem := make(chan struct{}), error(nil)
	if err := Count(elected, func(ctx context.Context, counts Counts) error {
		if ctx.Err() == nil {
			t.Error("the count may wait for a cache")
		}
		counts.Add(byReason, "A", 1)
		counts.Add(byReason, "A", 2)
		counts.Add(byReason, "by another writer", 1)
		counts.Add(all, "", 4)
		return problem
	}, byReason, all); err != nil {
		t.Fatal(err)
	}
	want := func(what string, reasons, total map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(reasons, gathered(t, "muster_test_by_reason")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(total, gathered(t, "muster_test")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("on a standby", nil, nil)
	close(elected)
	problem = errors.New("the cache has not synced")
	want("without a cache", nil, nil)
	problem = nil
	want("counted", map[string]float64{"reason=A ": 3, "reason=B ": 0}, map[string]float64{"": 4})
}
