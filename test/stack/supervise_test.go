package stack

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// TestMain plays the supervisor when a test starts this program as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "supervise" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		dir := strings.TrimPrefix(os.Args[2], "--dir=")
		if err := Supervise(ctx, Options{Dir: dir, Profile: API, WithoutCertManager: true, Progress: os.Stdout}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// supervised starts a stack as `make up` does.
func supervised(t *testing.T) (dir string, state *State) {
	t.Helper()
	dir = t.TempDir()
	if err := SpawnSupervisor(t.Context(), dir, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = TearDown(dir) })
	state, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, state
}

func TestASupervisedStackOutlivesItsStarterAndLeavesNothing(t *testing.T) {
	dir, state := supervised(t)
	s, err := Attach(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Kubectl(t.Context(), "get", "namespaces"); err != nil {
		t.Error(err)
	}
	i := slices.IndexFunc(state.Processes, func(p process.Status) bool { return p.Name == "kube-controller-manager" })
	dead := state.Processes[i].PID
	if err := syscall.Kill(dead, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := waitGone(dead, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	// The supervisor notices the end of its process a moment later.
	if err := poll.Until(t.Context(), "another kube-controller-manager", time.Minute, func(context.Context) error {
		if err := s.StartDead(t.Context()); err != nil {
			return err
		}
		if state, err = ReadState(dir); err == nil && (!state.Processes[i].Alive() || state.Processes[i].PID == dead) {
			err = fmt.Errorf("%+v does not run again", state.Processes[i])
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	count, err := TearDown(dir)
	if err != nil || count != len(state.Processes)+1 {
		t.Errorf("stopped %d of %d processes and the supervisor (%v)", count, len(state.Processes), err)
	}
	for _, p := range state.Processes {
		if !p.Running || p.Alive() {
			t.Errorf("%s: running before %t, after %t", p.Name, p.Running, p.Alive())
		}
	}
}

func TestNothingOutlivesAKilledSupervisor(t *testing.T) {
	dir, state := supervised(t)
	if err := syscall.Kill(state.Supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, p := range state.Processes {
		if err := waitGone(p.PID, 10*time.Second); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	if _, err := Attach(dir); err == nil {
		t.Error("attached to a dead stack")
	}
}
