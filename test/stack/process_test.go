package stack

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/test/stack/poll"
)

func TestADeadProcessEndsTheWaitAtOnce(t *testing.T) {
	p := &process{log: t.TempDir() + "/log", spec: processSpec{name: "sh", path: "/bin/sh", args: []string{"-c", "echo no memory; exit 3"}, env: []string{}}}
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err := poll.UntilOr(t.Context(), "sh", time.Minute, func(context.Context) error { return errors.New("not ready") }, p.deathNote)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("got %v", err)
	}
	if time.Since(begin) > 10*time.Second {
		t.Error("it waited on")
	}
}
