package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// defaultReadyTimeout is long enough for a loaded machine with few cores.
const defaultReadyTimeout = 2 * time.Minute

// run adds a process to the stack, starts it and waits until it is ready.
func (s *Stack) run(ctx context.Context, spec process.Spec) error {
	return s.startProcess(ctx, s.add(spec))
}

// runAll starts all processes first and then waits for each, because most processes wait for others when they
// start.
func (s *Stack) runAll(ctx context.Context, specs []process.Spec) error {
	begin := time.Now()
	started := make([]*process.Process, 0, len(specs))
	for _, spec := range specs {
		p := s.add(spec)
		if err := p.Start(); err != nil {
			return err
		}
		s.options.changed(s)
		started = append(started, p)
	}
	for _, p := range started {
		if err := p.Ready(ctx); err != nil {
			return err
		}
		s.say("%s ready (%s)", p.Name(), poll.Since(begin))
	}
	return nil
}

// add adds a process to the stack.
func (s *Stack) add(spec process.Spec) *process.Process {
	if spec.Timeout == 0 {
		spec.Timeout = defaultReadyTimeout
	}
	if spec.Env == nil {
		spec.Env = []string{"HOME=" + s.dir, "TMPDIR=" + s.dir}
	}
	if spec.Dir == "" {
		spec.Dir = s.dir
	}
	p := process.New(spec, s.LogPath(spec.Name))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	return p
}

// drop removes a process that has ended from the stack.
func (s *Stack) drop(p *process.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = slices.DeleteFunc(s.processes, func(known *process.Process) bool { return known == p })
}

func (s *Stack) startProcess(ctx context.Context, p *process.Process) error {
	if p.Running() {
		return nil
	}
	if s.ctx.Err() != nil {
		return errors.New("the stack is going down")
	}
	begin := time.Now()
	if err := p.Prepare(ctx); err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	s.options.changed(s)
	if err := p.Ready(ctx); err != nil {
		return err
	}
	s.say("%s ready (%s)", p.Name(), poll.Since(begin))
	return nil
}

// Start starts a stopped process and waits until it is ready.
func (s *Stack) Start(ctx context.Context, name string) error {
	p, err := s.process(name)
	if err != nil {
		return err
	}
	return s.startProcess(ctx, p)
}

// Stop ends a process with SIGTERM and returns when it has exited.
func (s *Stack) Stop(_ context.Context, name string) error { return s.end(name, syscall.SIGTERM) }

// Kill ends a process with SIGKILL and returns when it has exited.
func (s *Stack) Kill(_ context.Context, name string) error { return s.end(name, syscall.SIGKILL) }

func (s *Stack) end(name string, signal syscall.Signal) error {
	p, err := s.process(name)
	if err != nil {
		return err
	}
	defer s.options.changed(s)
	return p.SignalAndWait(signal)
}

// Signal sends a signal to a process without waiting; SIGSTOP freezes a process, and SIGCONT continues it.
func (s *Stack) Signal(name string, signal syscall.Signal) error {
	for _, status := range s.Processes() {
		if status.Name == name && status.Running {
			return syscall.Kill(status.PID, signal)
		}
	}
	return fmt.Errorf("%s is not running", name)
}

// Respawn starts a process that has ended again with the same spec, and does not wait for it. A kubelet does the
// same with a container, and needs no API server for it.
func (s *Stack) Respawn(name string) error {
	p, err := s.process(name)
	if err != nil {
		return err
	}
	if s.ctx.Err() != nil {
		return errors.New("the stack is going down")
	}
	return p.Start()
}

// Restart stops a process, starts it and waits until it is ready.
func (s *Stack) Restart(ctx context.Context, name string) error {
	if err := s.Stop(ctx, name); err != nil {
		return err
	}
	return s.Start(ctx, name)
}

// StartDead starts every process that has ended, in the order of the first start.
func (s *Stack) StartDead(ctx context.Context) error {
	if s.remote != nil {
		return s.remote.do("start-dead", "", nil)
	}
	for _, status := range s.Processes() {
		if !status.Running {
			if err := s.Start(ctx, status.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Processes lists the processes of the stack in the order of their first start.
func (s *Stack) Processes() []process.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]process.Status, 0, len(s.processes))
	for _, p := range s.processes {
		list = append(list, p.Status())
	}
	return list
}

// LogPath returns the path of a process's log.
func (s *Stack) LogPath(name string) string { return filepath.Join(s.dir, "logs", name+".log") }

// LogTail returns the end of a process's log, for messages.
func (s *Stack) LogTail(name string) string {
	return process.New(process.Spec{}, s.LogPath(name)).Tail()
}

func (s *Stack) process(name string) (*process.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make([]string, 0, len(s.processes))
	for _, p := range s.processes {
		if p.Name() == name {
			return p, nil
		}
		known = append(known, p.Name())
	}
	return nil, fmt.Errorf("there is no process %q; there are: %s", name, strings.Join(known, ", "))
}
