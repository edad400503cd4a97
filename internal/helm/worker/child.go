package worker

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// argument makes the program a child. It is not meant for users.
	argument = "worker"
	// budget is the memory that a child may add to its first 64 MiB of heap. Go maps the heap in parts
	// of that size, so a job may have two of them.
	budget = 96 << 20
	// outOfMemory is the exit code of Go's runtime when it runs out of memory.
	outOfMemory = 2
)

// errDied says that a child ended for a reason other than its job.
var errDied = errors.New("the worker ended")

func init() {
	gob.Register(Problem(""))
	gob.Register(&TooLargeError{})
}

// Main makes the program a child if its parent started it as one. Programs with a Pool call it
// first; elsewhere it returns false.
func Main() bool {
	if len(os.Args) != 2 || os.Args[1] != argument {
		return false
	}
	if err := confine(); err != nil {
		os.Exit(1)
	}
	serve(os.Stdin, os.Stdout)
	return true
}

// confine limits this process. RLIMIT_DATA does not limit Go: the kernel does not count memory that
// Go maps over addresses that it reserved, until the next mapping, so one large text passes.
// RLIMIT_AS counts reserved addresses, too.
func confine() error {
	runtime.GOMAXPROCS(1)
	debug.SetMemoryLimit(budget * 2 / 3) // The garbage collector works harder well before the kernel refuses.
	var pages uint64
	statm, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(statm), &pages)
	}
	if err != nil {
		return err
	}
	most := pages*uint64(os.Getpagesize()) + budget
	return unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: most, Max: most})
}

// serve does jobs until there are no more.
func serve(from io.Reader, to io.Writer) {
	in, its := bufio.NewReader(from), new(hand)
	jobs, results := gob.NewDecoder(in), gob.NewEncoder(to)
	for {
		var next job
		if jobs.Decode(&next) != nil {
			return
		}
		late := time.AfterFunc(2*next.Limit, func() { os.Exit(1) }) // The parent is gone.
		payload := io.LimitReader(in, next.Size)
		done := its.do(next, payload)
		_, _ = io.Copy(io.Discard, payload) // The parent sends everything before it reads the result.
		late.Stop()
		if results.Encode(done) != nil {
			return
		}
	}
}

// child is a child as its parent sees it.
type child struct {
	command *exec.Cmd
	in      io.WriteCloser
	send    *gob.Encoder
	receive *gob.Decoder
	idle    *time.Timer
	isDead  bool
}

func start() (*child, error) {
	command := exec.Command("/proc/self/exe", argument)
	command.Env = []string{} // Nil would mean the environment of the parent.
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{command: command, in: in, send: gob.NewEncoder(in), receive: gob.NewDecoder(out)}, command.Start()
}

// run does a job. A child that fails or is late is dead afterwards.
func (c *child) run(ctx context.Context, its job, parts [][]byte) (result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, its.Limit, LimitError(fmt.Sprintf("%s took longer than %s", its.Kind, its.Limit)))
	defer cancel()
	stop := context.AfterFunc(ctx, c.kill)
	done, err := c.exchange(its, parts)
	if c.isDead = err != nil || !stop(); c.isDead {
		c.end()
	}
	switch {
	case err == nil:
		return done, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case c.command.ProcessState.ExitCode() == outOfMemory:
		err = LimitError(fmt.Sprintf("%s took more than %d MiB", its.Kind, budget>>20))
	default:
		err = fmt.Errorf("%s: %w: %s", its.Kind, errDied, c.command.ProcessState)
	}
	return result{}, err
}

// exchange sends a job, and receives its result.
func (c *child) exchange(its job, parts [][]byte) (done result, err error) {
	if err := c.send.Encode(its); err != nil {
		return done, err
	}
	payload := net.Buffers(slices.Clone(parts))
	if _, err := payload.WriteTo(c.in); err != nil {
		return done, err
	}
	return done, c.receive.Decode(&done)
}

func (c *child) kill() { _ = c.command.Process.Kill() }

// end ends the child.
func (c *child) end() {
	c.kill()
	_ = c.command.Wait()
}
