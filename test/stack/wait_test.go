package stack

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWaitForSaysWhatItSaw(t *testing.T) {
	err := WaitFor(t.Context(), "the moon", 100*time.Millisecond, func(context.Context) error { return errors.New("it is cloudy") })
	if err == nil || !strings.Contains(err.Error(), "the moon") || !strings.Contains(err.Error(), "it is cloudy") {
		t.Errorf("got %v", err)
	}
}

func TestADeadProcessEndsTheWaitAtOnce(t *testing.T) {
	p := &process{log: t.TempDir() + "/log", spec: processSpec{name: "sh", path: "/bin/sh", args: []string{"-c", "echo no memory; exit 3"}, env: []string{}}}
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err := waitFor(t.Context(), "sh", time.Minute, func(context.Context) error { return errors.New("not ready") }, p.deathNote)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("got %v", err)
	}
	if time.Since(begin) > 10*time.Second {
		t.Error("it waited on")
	}
}

func TestLeasesAreApart(t *testing.T) {
	one, two := newLeases(), newLeases()
	t.Cleanup(one.release)
	t.Cleanup(two.release)
	first, err := one.port(0)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing listens there yet; the lease alone keeps others away.
	second, err := two.port(first)
	if err != nil || second == first {
		t.Errorf("port %d was leased twice (%v)", second, err)
	}
	one.release()
	if again, err := two.port(first); err != nil || again != first {
		t.Errorf("after its release port %d gave %d (%v)", first, again, err)
	}
}
