package stack

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/ports"
	"github.com/muster-fleet/muster/test/stack/process"
)

// State is what a supervised stack writes to disk for later commands.
type State struct {
	// Supervisor is the PID of the process that holds the stack.
	Supervisor int       `json:"supervisor"`
	Since      time.Time `json:"since"`
	// Ready means that the whole stack has started.
	Ready   bool    `json:"ready"`
	Profile Profile `json:"profile"`
	Muster  bool    `json:"muster"`
	// Socket is the path at which the supervisor takes orders.
	Socket    string           `json:"socket"`
	Tools     *parts.Tools     `json:"tools"`
	Processes []process.Status `json:"processes"`
}

func statePath(dir string) string { return filepath.Join(dir, "state.json") }

// ReadState returns the state of the stack in this directory, or an error that errors.Is os.ErrNotExist if there is
// none.
func ReadState(dir string) (*State, error) {
	content, err := os.ReadFile(statePath(dir))
	if err != nil {
		return nil, err
	}
	state := &State{}
	return state, json.Unmarshal(content, state)
}

// SupervisorAlive reports whether the supervisor still runs.
func (s *State) SupervisorAlive() bool { return process.Runs(s.Supervisor, "") }

// Supervise starts a stack in options.Dir and holds it until ctx ends. Meanwhile it keeps state.json up to date and
// takes orders. `make up` runs it.
func Supervise(ctx context.Context, options Options) error {
	// The socket is not in that directory, whose path may be too long for a socket.
	sockets, err := os.MkdirTemp("", "muster-stack-socket-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(sockets) }()
	var mu sync.Mutex
	state := State{
		Supervisor: os.Getpid(), Since: time.Now(), Profile: options.Profile, Muster: options.Muster, Socket: filepath.Join(sockets, "control"),
	}
	options.changed = func(s *Stack) {
		mu.Lock()
		defer mu.Unlock()
		state.Tools, state.Processes = s.tools, s.Processes()
		// A full disk shows soon enough elsewhere.
		if content, err := json.MarshalIndent(state, "", "  "); err == nil {
			_ = files.WriteAtomically(statePath(s.dir), content)
		}
	}
	defer func() { _ = os.Remove(statePath(options.Dir)) }()
	s, err := Up(ctx, options)
	if err != nil {
		return err
	}
	if err := errors.Join(s.takeOrders(ctx, state.Socket), linkKubectl(s)); err != nil {
		return errors.Join(err, s.Down())
	}
	mu.Lock()
	state.Ready = true
	mu.Unlock()
	s.options.changed(s)
	<-ctx.Done()
	return s.Down()
}

// linkKubectl links the kubectl that was built with the parts, and its plugin, to a short path.
func linkKubectl(s *Stack) error {
	for _, name := range []string{"kubectl", "kubectl-muster"} {
		program := s.Program(name)
		if program == "" {
			continue // The stack runs without Muster, so it was not built.
		}
		if err := files.SwapLink(program, filepath.Join(s.dir, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// orders are the commands that a supervisor executes for later programs.
type orders struct {
	ctx   context.Context
	stack *Stack
}

// takeOrders serves orders on a socket until ctx ends.
func (s *Stack) takeOrders(ctx context.Context, socket string) error {
	server := rpc.NewServer()
	if err := server.RegisterName("Stack", orders{ctx, s}); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go server.Accept(listener)
	return nil
}

// Do executes an order by its name, with an argument.
func (o orders) Do(order [2]string, reply *[]byte) (err error) {
	switch order[0] {
	case "start-dead":
		return o.stack.StartDead(o.ctx)
	case "start-downstream":
		*reply, err = o.stack.StartDownstream(o.ctx)
		return err
	case "start-host-provider":
		return o.stack.StartHostProvider(o.ctx)
	case "start-component":
		return o.stack.StartComponent(o.ctx, order[1])
	case "start-agent":
		return o.stack.StartAgent(o.ctx, order[1])
	case "reload":
		return o.stack.Reload(o.ctx)
	default:
		return fmt.Errorf("unknown order %q", order[0])
	}
}

// remote gives orders to the supervisor of a stack.
type remote struct{ socket string }

func (r *remote) do(order, argument string, reply *[]byte) error {
	supervisor, err := rpc.Dial("unix", r.socket)
	if err != nil {
		return fmt.Errorf("ask the supervisor: %w", err)
	}
	defer func() { _ = supervisor.Close() }()
	if reply == nil {
		reply = new([]byte)
	}
	return supervisor.Call("Stack.Do", [2]string{order, argument}, reply)
}

// Attach returns a stack that a supervisor holds, such as the one of `make up` in .dev. The caller can use the API
// server, and give the orders that Do knows.
func Attach(dir string) (*Stack, error) {
	state, err := ReadState(dir)
	if err != nil {
		return nil, err
	}
	if !state.Ready || !state.SupervisorAlive() {
		return nil, fmt.Errorf("the stack in %s does not run", dir)
	}
	s := &Stack{
		Kubeconfig: filepath.Join(dir, "kubeconfig"), dir: dir, tools: state.Tools, options: Options{Progress: io.Discard}, remote: &remote{state.Socket},
	}
	config, err := s.RESTConfig()
	if err != nil {
		return nil, err
	}
	s.client, err = newClient(config)
	return s, err
}

// DevDir is the directory of the stack that `make up` starts.
func DevDir() (string, error) {
	root, err := RepoRoot()
	return filepath.Join(root, ".dev"), err
}

// LockDir prevents two commands from starting or stopping the stack of a directory at the same time. The lock is
// outside the directory, because they remove the directory.
func LockDir(dir string, waiting func()) (unlock func(), err error) {
	name := fmt.Sprintf("dir-%x", sha256.Sum256([]byte(dir)))
	return files.Lock(filepath.Join(ports.Dir(), name), waiting)
}

func supervisorLog(dir string) string { return filepath.Join(dir, "logs", "supervisor.log") }

// SpawnSupervisor starts `<this program> supervise <args>` independently of the calling terminal, copies its
// progress to out, and returns when the stack is ready. If ctx ends before, it tells the supervisor to stop.
func SpawnSupervisor(ctx context.Context, dir string, out io.Writer, args ...string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	// A copy, because `go run` removes its program when it ends.
	program := filepath.Join(dir, "bin", "stack")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := files.WriteAtomically(program, self); err != nil {
		return err
	}
	if err := os.Chmod(program, 0o755); err != nil {
		return err
	}
	if err := files.WriteAtomically(supervisorLog(dir), nil); err != nil {
		return err
	}
	defer Follow(dir, out)()
	log, err := os.OpenFile(supervisorLog(dir), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, append([]string{"supervise", "--dir=" + dir}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for {
		if state, err := ReadState(dir); err == nil && state.Ready && state.Supervisor == cmd.Process.Pid {
			return nil
		}
		select {
		case err := <-exited:
			return fmt.Errorf("the stack did not come up (%w); logs are in %s", err, filepath.Dir(log.Name()))
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-exited
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Follow copies the log of a stack's supervisor from now on, until the caller calls stop.
func Follow(dir string, out io.Writer) (stop func()) {
	log, err := os.Open(supervisorLog(dir))
	if err != nil {
		return func() {}
	}
	_, _ = log.Seek(0, io.SeekEnd)
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			_, _ = io.Copy(out, log)
			select {
			case <-done:
				_, _ = io.Copy(out, log)
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() { close(done); <-stopped; _ = log.Close() }
}

// TearDown stops the supervised stack of a directory and makes sure that none of its processes is left. It returns
// the number of processes. It keeps the logs and removes the data.
func TearDown(dir string) (int, error) {
	state, err := ReadState(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	stopped := 0
	if state.SupervisorAlive() {
		stopped++
		_ = syscall.Kill(state.Supervisor, syscall.SIGTERM)
		if err := waitGone(state.Supervisor, 2*process.StopGrace); err != nil {
			_ = syscall.Kill(state.Supervisor, syscall.SIGKILL)
			if err := waitGone(state.Supervisor, process.StopGrace); err != nil {
				return 0, err
			}
		}
	}
	for _, p := range state.Processes {
		if !p.Running {
			continue
		}
		stopped++
		if !p.Alive() {
			continue
		}
		// Processes die with their supervisor; this is for a supervisor that was just dying.
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
		if err := waitGone(p.PID, process.StopGrace); err != nil {
			return stopped, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	problems := []error{err}
	for _, entry := range entries {
		if !slices.Contains([]string{"logs", "bin"}, entry.Name()) {
			problems = append(problems, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return stopped, errors.Join(problems...)
}

func waitGone(pid int, timeout time.Duration) error {
	return poll.Until(context.Background(), fmt.Sprintf("process %d to end", pid), timeout, func(context.Context) error {
		if process.Runs(pid, "") {
			return errors.New("it still runs")
		}
		return nil
	})
}
