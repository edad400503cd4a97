package stack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-fleet/muster/test/stack/files"
)

// Supervise brings a stack up in options.Dir and holds it until ctx ends, keeping
// state.json true and taking orders. It is what runs behind `make up`.
func Supervise(ctx context.Context, options Options) error {
	sockets, err := os.MkdirTemp("", "muster-stack-socket-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(sockets) }()
	keeper := &stateKeeper{state: State{
		Supervisor: os.Getpid(), Since: time.Now(), Profile: options.Profile, Muster: options.Muster,
		// Not in the directory itself: its path may be too long for a socket.
		Socket: filepath.Join(sockets, "control"),
	}}
	options.changed = keeper.keep
	s, err := Up(ctx, options)
	if err != nil {
		return errors.Join(err, forgetState(options.Dir))
	}
	if err := s.serveControl(ctx, keeper.state.Socket); err != nil {
		return errors.Join(err, s.Down())
	}
	if err := linkKubectl(s); err != nil {
		return errors.Join(err, s.Down())
	}
	keeper.ready(s)
	<-ctx.Done()
	if err := s.Down(); err != nil {
		return err
	}
	return forgetState(options.Dir)
}

// forgetState removes the state of a stack that is no more, if it got as far as having one.
func forgetState(dir string) error {
	if err := os.Remove(statePath(dir)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// stateKeeper writes state.json whenever something changes.
type stateKeeper struct {
	mu    sync.Mutex
	state State
}

func (k *stateKeeper) keep(s *Stack) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Kubeconfig, k.state.Root, k.state.Programs, k.state.Manifests = s.Kubeconfig, s.tools.Root, s.tools.Bins, s.tools.Manifests
	k.state.Processes = s.Processes()
	// A full disk shows itself soon enough elsewhere.
	_ = k.state.write(s.dir)
}

func (k *stateKeeper) ready(s *Stack) {
	k.mu.Lock()
	k.state.Ready = true
	k.mu.Unlock()
	k.keep(s)
}

// linkKubectl puts the kubectl that was built with the parts, and its plugin, at a path to
// remember.
func linkKubectl(s *Stack) error {
	bin := filepath.Join(s.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"kubectl", "kubectl-muster"} {
		program := s.ProgramPath(name)
		if program == "" {
			continue // It was not built: the stack runs without Muster.
		}
		if err := files.SwapLink(program, filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}
