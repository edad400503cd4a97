package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/test/stack"
)

// showTree prints what exists now, as a person sees it, and leaves the same as a page.
func (s *story) showTree(ctx context.Context) error {
	s.act("What exists now: kubectl muster tree --bundles")
	dir, err := stack.DevDir()
	if err != nil {
		return err
	}
	program := s.Program("kubectl-muster")
	tree, err := exec.CommandContext(ctx, program, "tree", "--bundles", "--kubeconfig="+s.Kubeconfig).Output()
	if err != nil {
		return fmt.Errorf("kubectl muster tree: %w", err)
	}
	for line := range strings.Lines(string(tree)) {
		fmt.Print("   " + line)
	}
	s.page, err = s.leavePage(ctx, dir, program)
	return err
}

// watchdog runs the page until the stack is no more, or begins to stop: an API server that is to end waits
// for whoever watches. Its arguments are the stack's process and socket, then the command.
const watchdog = `stack=$1 socket=$2; shift 2; "$@" & page=$!
while kill -0 "$stack" 2>/dev/null && [ -S "$socket" ] && kill -0 "$page" 2>/dev/null; do sleep 1; done
kill "$page" 2>/dev/null`

// leavePage starts the page, and returns its address.
func (s *story) leavePage(ctx context.Context, dir, program string) (string, error) {
	state, err := stack.ReadState(dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "logs", "page.log")
	log, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }()
	// Not bound to the context: it stays when the demo has ended.
	page := exec.Command("sh", "-c", watchdog, "page", strconv.Itoa(state.Supervisor), state.Socket, program, "view", "--kubeconfig="+s.Kubeconfig) //nolint:noctx // See above.
	page.Stdout, page.Stderr = log, log
	page.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := page.Start(); err != nil {
		return "", err
	}
	var address string
	err = s.wait(ctx, "the page", patience, func(context.Context) error {
		written, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = written.Close() }()
		lines := bufio.NewScanner(written)
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), "http://") {
			return errors.New("it has not said its address yet: " + lines.Text())
		}
		address = lines.Text()
		return nil
	})
	return address, err
}

func (s *story) showNext() {
	fmt.Printf(`
Everything above was checked. The story took %s; the stack is still up. Try:

   export KUBECONFIG=$PWD/.dev/kubeconfig PATH=$PWD/.dev/bin:$PATH
   kubectl get clusters.cluster.x-k8s.io,clusters.fleet.cattle.io -A
   kubectl -n %[2]s describe clusters.cluster.x-k8s.io alpha
   kubectl muster tree
   kubectl muster trace edge-hello %[2]s/alpha     # why it is not there
   kubectl -n %[2]s delete clusters.cluster.x-k8s.io --all     # and see group and mapping go
   make status     # what runs, and where it logs
   make down       # stop it all

The same as a page, until then: %[3]s
`, time.Since(s.begin).Round(100*time.Millisecond), team, s.page)
}
