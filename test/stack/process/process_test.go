package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-fleet/muster/test/stack/poll"
)

func TestADeadProcessEndsTheWaitAtOnce(t *testing.T) {
	p := New(Spec{
		Name: "sh", Path: "/bin/sh", Args: []string{"-c", "echo no memory; exit 3"}, Env: []string{},
		Ready: func(context.Context) error { return errors.New("not ready") }, Timeout: time.Minute,
	}, filepath.Join(t.TempDir(), "log"))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err := p.Ready(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("got %v", err)
	}
	if time.Since(begin) > 10*time.Second {
		t.Error("it waited on")
	}
}

// make status calls a process dead that is not alive.
func TestAPlayedProgramIsAlive(t *testing.T) {
	p := New(Spec{Name: "flanneld", Path: "/bin/sh", Args: []string{"-c", "echo begins; exec sleep infinity"}, Env: []string{"PATH=/usr/bin:/bin"}, Timeout: time.Minute}, filepath.Join(t.TempDir(), "log"))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.SignalAndWait(syscall.SIGTERM) })
	if err := poll.Until(t.Context(), "sleep", time.Minute, func(context.Context) error {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.Status().PID))
		if err == nil && string(name) != "sleep\n" {
			err = fmt.Errorf("it is %q", name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if !p.Status().Alive() {
		t.Error("a shell that became another program counts as dead")
	}
	other := exec.Command("sleep", "infinity")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	if Runs(other.Process.Pid, "/bin/sh") {
		t.Error("a process that leads no group counts as a shell of ours")
	}
}

func TestAProcessIsKnownByItsProgram(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]bool{"": true, program: true, link: true, "/another": false} {
		if got := Runs(os.Getpid(), program); got != want {
			t.Errorf("%q runs: %t", program, got)
		}
	}
}
