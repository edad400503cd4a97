package stack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/ports"
	"github.com/muster-fleet/muster/test/stack/process"
)

// DevDir is the directory of the stack that `make up` starts.
func DevDir() (string, error) {
	root, err := RepoRoot()
	return filepath.Join(root, ".dev"), err
}

// LockDir keeps two commands from bringing the stack of a directory up or down at the
// same time. The lock lies outside of the directory, which they remove.
func LockDir(dir string, waiting func()) (unlock func(), err error) {
	name := fmt.Sprintf("dir-%x", sha256.Sum256([]byte(dir)))
	return files.Lock(filepath.Join(ports.Dir(), name), waiting)
}

// SpawnSupervisor starts `<this program> supervise <args>` apart from the calling
// terminal and returns when the stack is ready, copying the progress to out. If ctx
// ends before, the supervisor is told to stop.
func SpawnSupervisor(ctx context.Context, dir string, out io.Writer, args ...string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	// A copy that stays: `go run` removes its program when it ends.
	program := filepath.Join(dir, "bin", "stack")
	if err := copySelf(program); err != nil {
		return err
	}
	logPath := filepath.Join(dir, "logs", "supervisor.log")
	if err := os.MkdirAll(filepath.Dir(logPath), 0o755); err != nil {
		return err
	}
	log, err := os.Create(logPath)
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

	progress := &follower{path: logPath, out: out}
	defer progress.copy()
	for {
		progress.copy()
		if state, err := ReadState(dir); err == nil && state.Ready && state.Supervisor == cmd.Process.Pid {
			return nil
		}
		select {
		case err := <-exited:
			return fmt.Errorf("the stack did not come up (%w); logs are in %s", err, filepath.Dir(logPath))
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-exited
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Follow copies what a stack's supervisor logs from now on until stop is called.
func Follow(dir string, out io.Writer) (stop func()) {
	f := &follower{path: filepath.Join(dir, "logs", "supervisor.log"), out: out}
	if info, err := os.Stat(f.path); err == nil {
		f.offset = info.Size()
	}
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			f.copy()
			select {
			case <-done:
				f.copy()
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() { close(done); <-stopped }
}

type follower struct {
	path   string
	offset int64
	out    io.Writer
}

func (f *follower) copy() {
	file, err := os.Open(f.path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(f.offset, io.SeekStart); err == nil {
		count, _ := io.Copy(f.out, file)
		f.offset += count
	}
}

func copySelf(to string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// TearDown stops the supervised stack of a directory and makes sure that no process
// of it is left. It returns how many there were. Logs stay, the data goes.
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
		if err := syscall.Kill(state.Supervisor, syscall.SIGTERM); err != nil {
			return 0, err
		}
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
		if !runs(p.PID, p.Path) {
			continue
		}
		// They die with their supervisor; this is for one that was just dying.
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
		if err := waitGone(p.PID, process.StopGrace); err != nil {
			return stopped, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return stopped, removeAllBut(dir, "logs", "bin")
}

func waitGone(pid int, timeout time.Duration) error {
	return poll.Until(context.Background(), fmt.Sprintf("process %d to end", pid), timeout, func(context.Context) error {
		if runs(pid, "") {
			return errors.New("it still runs")
		}
		return nil
	})
}

// zombie tells whether a process has ended and only waits for its parent to notice.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The state follows the name, which is in parentheses and may hold anything.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	return strings.HasPrefix(rest, "Z")
}

func removeAllBut(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var problems []error
	for _, entry := range entries {
		kept := false
		for _, name := range keep {
			kept = kept || entry.Name() == name
		}
		if !kept {
			problems = append(problems, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(problems...)
}
