package stack

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain plays the supervisor when a test spawns this program as one.
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

func TestASupervisedStackOutlivesItsStarterAndLeavesNothing(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	if err := SpawnSupervisor(ctx, dir, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = TearDown(dir) })
	s, err := Attach(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Kubectl(ctx, "get", "namespaces"); err != nil {
		t.Error(err)
	}
	if err := s.Kill(ctx, "kube-controller-manager"); err != nil {
		t.Fatal(err)
	}
	if err := s.StartDead(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx, "no-such"); err == nil || !strings.Contains(err.Error(), "there are: etcd") {
		t.Errorf("starting an unknown process gave %v", err)
	}
	running := s.Processes()
	count, err := TearDown(dir)
	if err != nil || count != len(running)+1 {
		t.Errorf("stopped %d of %d processes and the supervisor (%v)", count, len(running), err)
	}
	for _, p := range running {
		if !p.Running || runs(p.PID, "") {
			t.Errorf("%s: running before %t, after %t", p.Name, p.Running, runs(p.PID, ""))
		}
	}
}

func TestNothingOutlivesAKilledSupervisor(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	if err := SpawnSupervisor(ctx, dir, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = TearDown(dir) })
	state, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := TearDown(dir); err != nil {
		t.Error(err)
	}
}
