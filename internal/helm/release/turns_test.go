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
		t.Error("too many render at once")
	}
	all.leave("slow")
	if !all.take(t.Context(), "third") {
		t.Error("a rendering that has ended still blocks others")
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

// A namespace that was refused is next, before those that had their turn.
func TestTurnsOfRefused(t *testing.T) {
	all := NewTurns(2)
	for _, namespace := range []string{"a", "b"} {
		if !all.take(t.Context(), namespace) {
			t.Fatalf("%s waits", namespace)
		}
		all.since[namespace] = time.Now().Add(-time.Hour)
	}
	if all.take(t.Context(), "c") {
		t.Fatal("too many render at once")
	}
	all.leave("a")
	if all.take(t.Context(), "a") {
		t.Error("a has another turn before c")
	}
	if !all.take(t.Context(), "c") {
		t.Error("c waits although it is next")
	}
	all.leave("b")
	if !all.take(t.Context(), "a") {
		t.Error("a waits although it is next")
	}
	all.leave("a")
	all.line = append(all.line, refused{"gone", time.Now().Add(-time.Hour)})
	if !all.take(t.Context(), "b") {
		t.Error("b waits for a namespace that no longer asks for a turn")
	}
}
