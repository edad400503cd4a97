package release

import (
	"context"
	"sync"
	"testing"
	"time"
)

// A slow template blocks only its own namespace, and no reconcile waits for it.
func TestTurns(t *testing.T) {
	all := NewTurns(2)
	if !all.take(t.Context(), "slow") {
		t.Fatal("the first one waits")
	}
	all.since["slow"] = time.Now().Add(-time.Hour)
	if all.take(t.Context(), "slow") {
		t.Error("a namespace renders twice at once")
	}
	if !all.take(t.Context(), "other") {
		t.Error("another namespace waits")
	}
	all.since["other"] = time.Now().Add(-time.Hour)
	if all.take(t.Context(), "third") {
		t.Error("more render at once than may")
	}
	all.leave("slow")
	if !all.take(t.Context(), "third") {
		t.Error("what has ended still holds up others")
	}
}

// A reconcile waits for a rendering that has just begun: most templates take a millisecond.
func TestTurnsOfShortTemplates(t *testing.T) {
	all := NewTurns(2)
	if !all.take(t.Context(), "team") {
		t.Fatal("the first one waits")
	}
	all.since["team"] = time.Now().Add(time.Hour) // It has just begun, however slow this machine is.
	waiting, cancel := context.WithCancel(t.Context())
	cancel()
	if all.take(waiting, "team") {
		t.Error("a namespace renders twice at once")
	}
	var done sync.WaitGroup
	done.Go(func() {
		if !all.take(t.Context(), "team") {
			t.Error("it has not waited")
		}
	})
	all.leave("team")
	done.Wait()
}
