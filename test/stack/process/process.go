// Package process runs programs on this host, each with a log. No program outlives the process that started it.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/test/stack/poll"
)

// StopGrace is how long a process may take to end after SIGTERM. If a reconcile does not return, a controller
// manager ends by itself after 30 s.
const StopGrace = 45 * time.Second

// shell plays programs, often by exec of another one.
const shell = "/bin/sh"

// Spec specifies how to run a process and when it is ready.
type Spec struct {
	Name string
	Path string
	Args []string
	// Env is the whole environment: the process inherits no variable of the host.
	Env []string
	Dir string
	// Port is the port to show in the status table.
	Port int
	// Prepare runs before each start and may change the spec.
	Prepare func(context.Context, *Spec) error
	// Ready returns nil once the process does its job.
	Ready func(context.Context) error
	// LogContains is for programs without a readiness endpoint: the log line that proves readiness.
	LogContains string
	Timeout     time.Duration
}

// Process is a spec and its running instance, if any.
type Process struct {
	spec Spec
	log  string

	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
	exit    error
	started time.Time
	// logStart is the offset in the log at which the present run begins.
	logStart int64
}

// New returns a process that has not started yet. It appends to this log.
func New(spec Spec, log string) *Process { return &Process{spec: spec, log: log} }

// Name returns the name in the spec.
func (p *Process) Name() string { return p.spec.Name }

// Prepare runs the spec's Prepare, and must run before each start.
func (p *Process) Prepare(ctx context.Context) error {
	if p.spec.Prepare == nil {
		return nil
	}
	spec := p.spec
	if err := spec.Prepare(ctx, &spec); err != nil {
		return fmt.Errorf("prepare %s: %w", p.spec.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spec = spec
	return nil
}

// Start starts the process, and does not wait until it is ready.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runningLocked() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(p.log), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if p.logStart, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	fmt.Fprintf(log, "=== %s %s %s\n", time.Now().Format(time.RFC3339), p.spec.Path, strings.Join(p.spec.Args, " "))

	cmd := exec.Command(p.spec.Path, p.spec.Args...)
	cmd.Env, cmd.Dir = p.spec.Env, p.spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	// The process has a group of its own, so that ctrl-C reaches only the holder of the stack, which stops
	// processes in order. It dies with the holder, so that nothing is left.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := startFromLastingThread(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.spec.Name, err)
	}
	p.cmd, p.exited, p.started = cmd, make(chan struct{}), time.Now()
	go func(exited chan struct{}) {
		err := cmd.Wait()
		p.mu.Lock()
		p.exit = err
		p.mu.Unlock()
		close(exited)
	}(p.exited)
	return nil
}

// Ready waits until a started process is ready. If the process is dead, Ready returns an error with the end of its
// log at once.
func (p *Process) Ready(ctx context.Context) error {
	ready := p.spec.Ready
	switch {
	case p.spec.LogContains != "":
		ready = p.logContains
	case ready == nil:
		return p.DeathNote()
	}
	err := poll.UntilOr(ctx, p.spec.Name, p.spec.Timeout, ready, p.DeathNote)
	if err != nil && p.Running() {
		return fmt.Errorf("%w\nend of %s:\n%s", err, p.log, p.Tail())
	}
	return err
}

// SignalAndWait sends a signal and returns when the process has exited: only then are its ports free. After
// StopGrace it kills the process and returns an error.
func (p *Process) SignalAndWait(signal syscall.Signal) error {
	p.mu.Lock()
	if !p.runningLocked() {
		p.mu.Unlock()
		return nil
	}
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()

	if err := cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.spec.Name, err)
	}
	select {
	case <-exited:
		return nil
	case <-time.After(StopGrace):
	}
	_ = cmd.Process.Kill()
	<-exited
	return fmt.Errorf("%s did not end within %s of %v and was killed\n%s", p.spec.Name, StopGrace, signal, p.Tail())
}

// Wait returns when the present run has ended, with an error if it failed, or when ctx has ended.
func (p *Process) Wait(ctx context.Context) error {
	p.mu.Lock()
	exited := p.exited
	p.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-exited:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// Running reports whether the process runs.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runningLocked()
}

func (p *Process) runningLocked() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// DeathNote returns an error with the end of the log if the process is not running.
func (p *Process) DeathNote() error {
	p.mu.Lock()
	running, exit := p.runningLocked(), p.exit
	p.mu.Unlock()
	if running {
		return nil
	}
	return fmt.Errorf("%s is not running (%w); end of %s:\n%s", p.spec.Name, exit, p.log, p.Tail())
}

// Tail returns the end of the present run's log.
func (p *Process) Tail() string {
	p.mu.Lock()
	from := p.logStart
	p.mu.Unlock()
	file, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	const enough = 1 << 16
	if info, err := file.Stat(); err == nil && info.Size()-from > enough {
		from = info.Size() - enough
	}
	content, err := io.ReadAll(io.NewSectionReader(file, from, enough))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(LastLines(string(content), 25), "\n")
	for i, line := range lines {
		const readable = 400
		if len(line) > readable {
			lines[i] = line[:readable] + " ..."
		}
	}
	return strings.Join(lines, "\n")
}

// logContains is a condition: the present run has logged the line that proves readiness.
func (p *Process) logContains(context.Context) error {
	p.mu.Lock()
	from := p.logStart
	p.mu.Unlock()
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	if !strings.Contains(string(content[min(from, int64(len(content))):]), p.spec.LogContains) {
		return fmt.Errorf("its log does not say %q yet", p.spec.LogContains)
	}
	return nil
}

// Status returns the present status of the process.
func (p *Process) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	status := Status{Name: p.spec.Name, Port: p.spec.Port, Log: p.log, Running: p.runningLocked(), Path: p.spec.Path, Args: p.spec.Args}
	if status.Running {
		status.PID, status.Since = p.cmd.Process.Pid, p.started
	}
	return status
}

// Status describes one process of a stack.
type Status struct {
	Name    string    `json:"name"`
	Running bool      `json:"running"`
	PID     int       `json:"pid,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Port    int       `json:"port,omitempty"`
	Log     string    `json:"log"`
	Path    string    `json:"path"`
	Args    []string  `json:"args,omitempty"`
}

// LastLines returns the last lines of a text.
func LastLines(text string, count int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > count {
		lines = lines[len(lines)-count:]
	}
	return strings.Join(lines, "\n")
}

// The kernel sends the parent-death signal when the *thread* that started the child ends, so one thread that never
// ends starts all children.
var (
	starter     = make(chan func())
	startStarts = sync.OnceFunc(func() {
		go func() {
			runtime.LockOSThread()
			for start := range starter {
				start()
			}
		}()
	})
)

func startFromLastingThread(cmd *exec.Cmd) error {
	startStarts()
	result := make(chan error)
	starter <- func() { result <- cmd.Start() }
	return <-result
}

// Alive reports whether the process that ran at the time of the Status still runs.
func (s Status) Alive() bool { return Runs(s.PID, s.Path) }

// Runs reports whether a process with this PID runs and still is this program: the kernel reuses PIDs of dead
// processes.
func Runs(pid int, program string) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// A zombie only waits for its parent to notice. The state follows the name, which is in
	// parentheses and may hold anything.
	if strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')'):]), ") Z") {
		return false
	}
	if program == shell { // It may have become another program, but still leads the group that Start made.
		group, err := syscall.Getpgid(pid)
		return err == nil && group == pid
	}
	executable, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if program == "" || err != nil {
		return true
	}
	if resolved, err := filepath.EvalSymlinks(program); err == nil { // The kernel follows links.
		program = resolved
	}
	// A rebuilt program shows as "... (deleted)".
	return executable == program || executable == program+" (deleted)"
}
