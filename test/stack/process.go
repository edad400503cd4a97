package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a process may take to end after SIGTERM.
const stopGrace = 30 * time.Second

// processSpec says how to run a process and when it is of use.
type processSpec struct {
	name string
	path string
	args []string
	// env is the whole environment: nothing of the host's leaks in.
	env []string
	dir string
	// port is the one people ask for, for the status table.
	port int
	// prepare runs before each start and may change what is run.
	prepare func(context.Context, *processSpec) error
	// ready returns nil once the process does its job.
	ready func(context.Context) error
	// logsays is for programs that serve no readiness: the line that proves it.
	logsays string
	timeout time.Duration
}

// process is a spec and its running instance, if any.
type process struct {
	spec processSpec
	log  string

	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
	exit    error
	started time.Time
	// logStart is where the present run begins in the log.
	logStart int64
}

// start begins a run. It does not wait until the process is ready.
func (p *process) start() error {
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
	fmt.Fprintf(log, "=== %s %s %s\n", time.Now().Format(time.RFC3339), p.spec.path, strings.Join(p.spec.args, " "))

	cmd := exec.Command(p.spec.path, p.spec.args...)
	cmd.Env, cmd.Dir = p.spec.env, p.spec.dir
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, so that ctrl-C reaches the holder of the stack only, which
	// stops things in order; and death with the holder, so that nothing is left.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := startFromLastingThread(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.spec.name, err)
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

// signalAndWait sends a signal and returns when the process has exited: only then
// are its ports free. After the grace it kills, and says so.
func (p *process) signalAndWait(signal syscall.Signal) error {
	p.mu.Lock()
	if !p.runningLocked() {
		p.mu.Unlock()
		return nil
	}
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()

	if err := cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.spec.name, err)
	}
	select {
	case <-exited:
		return nil
	case <-time.After(stopGrace):
	}
	_ = cmd.Process.Kill()
	<-exited
	return fmt.Errorf("%s did not end within %s of %v and was killed\n%s", p.spec.name, stopGrace, signal, p.tail())
}

// running tells whether there is a live process.
func (p *process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runningLocked()
}

func (p *process) runningLocked() bool {
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

// deathNote returns an error with the end of the log if the process is not running.
func (p *process) deathNote() error {
	p.mu.Lock()
	running, exit := p.runningLocked(), p.exit
	p.mu.Unlock()
	if running {
		return nil
	}
	return fmt.Errorf("%s is not running (%v); end of %s:\n%s", p.spec.name, exit, p.log, p.tail())
}

// tail returns the end of the present run's log.
func (p *process) tail() string {
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
	lines := strings.Split(lastLines(string(content), 25), "\n")
	for i, line := range lines {
		const readable = 400
		if len(line) > readable {
			lines[i] = line[:readable] + " ..."
		}
	}
	return strings.Join(lines, "\n")
}

// logSays is a condition: the present run has logged the line that proves readiness.
func (p *process) logSays(context.Context) error {
	p.mu.Lock()
	from := p.logStart
	p.mu.Unlock()
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	if !strings.Contains(string(content[min(from, int64(len(content))):]), p.spec.logsays) {
		return fmt.Errorf("its log does not say %q yet", p.spec.logsays)
	}
	return nil
}

func (p *process) status() ProcessStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	status := ProcessStatus{Name: p.spec.name, Port: p.spec.port, Log: p.log, Running: p.runningLocked(), Path: p.spec.path, Args: p.spec.args}
	if status.Running {
		status.PID, status.Since = p.cmd.Process.Pid, p.started
	}
	return status
}

// ProcessStatus is what is known about one process of a stack.
type ProcessStatus struct {
	Name    string    `json:"name"`
	Running bool      `json:"running"`
	PID     int       `json:"pid,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Port    int       `json:"port,omitempty"`
	Log     string    `json:"log"`
	Path    string    `json:"path"`
	Args    []string  `json:"args,omitempty"`
}

// The kernel delivers a parent-death signal when the *thread* that started the
// child ends, so all children are started from one thread that never does.
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
