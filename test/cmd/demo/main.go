// Command demo plays Muster's main job on the stack of `make up`, with real objects and
// real controllers, and prints what happens. Each line with a check mark was checked:
// the command fails at the first that does not hold.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := &story{ctx: ctx, begin: time.Now()}
	dir, err := stack.DevDir()
	s.must(err)
	s.Stack, err = stack.Attach(dir)
	if len(os.Args) > 1 && os.Args[1] == "check-clean" {
		// Its clusters live in the memory of the old processes, so the demo starts over on a new stack.
		if err == nil && s.exists("namespace", platform) {
			s.must(fmt.Errorf("the demo was played on this stack before"))
		}
		return
	}
	if err != nil {
		s.must(fmt.Errorf("no stack to play on; run make up first: %w", err))
	}
	s.configure()
	s.addHosted()
	s.addClass()
	s.addBundles()
	s.addClusters()
	s.deployDownstream() // While Cluster API provisions, which takes half a minute.
	s.waitForClusters()
	s.checkTargets()
	s.becomeReady()
	s.showTree()
	s.upgrade()
	s.showNext(s.leavePage(dir))
}

// story is the demo's plot; each act prints what it did and checked.
type story struct {
	*stack.Stack
	ctx   context.Context
	begin time.Time
	step  int
	// hosted is when the guide's Cluster was applied.
	hosted time.Time
}

// must ends the demo if something has failed.
func (s *story) must(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "\n  ✗ %v\n", err)
		os.Exit(1)
	}
}

func (s *story) act(format string, args ...any) {
	s.step++
	fmt.Printf("\n%d. %s\n", s.step, fmt.Sprintf(format, args...))
}

func (s *story) checked(format string, args ...any) {
	fmt.Printf("   ✓ %s  [%s]\n", fmt.Sprintf(format, args...), poll.Since(s.begin))
}

// apply applies YAML as a user does, and returns the answer.
func (s *story) apply(yaml string) string {
	answer, err := s.KubectlInput(s.ctx, yaml, "apply", "-f", "-", "-o", "yaml")
	s.must(err)
	return answer
}

func (s *story) namespace(name string) {
	s.must(s.Apply(s.ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name)))
}

func (s *story) exists(args ...string) bool {
	_, err := s.Kubectl(s.ctx, append([]string{"get"}, args...)...)
	return err == nil
}

type kubectl func(ctx context.Context, args ...string) (string, error)

// until waits until kubectl prints exactly this.
func (s *story) until(what string, timeout time.Duration, want string, run kubectl, args ...string) {
	s.must(poll.Until(s.ctx, what, timeout, func(ctx context.Context) error {
		got, err := run(ctx, args...)
		if got = strings.TrimSpace(got); err == nil && got != want {
			err = fmt.Errorf("kubectl %s printed %q, not %q", strings.Join(args, " "), got, want)
		}
		return err
	}))
}

// untilTrue waits for a condition of an object.
func (s *story) untilTrue(condition string, timeout time.Duration, object ...string) {
	what := fmt.Sprintf("%s of %s", condition, object[len(object)-1])
	s.until(what, timeout, "True", s.Kubectl, append([]string{"get", "-o", fmt.Sprintf("jsonpath={.status.conditions[?(@.type==%q)].status}", condition)}, object...)...)
}

// showTree prints what exists now, as a person sees it.
func (s *story) showTree() {
	s.act("What exists now: kubectl muster tree --bundles")
	tree, err := exec.CommandContext(s.ctx, s.Program("kubectl-muster"), "tree", "--bundles", "--kubeconfig="+s.Kubeconfig).Output()
	s.must(err)
	for line := range strings.Lines(string(tree)) {
		fmt.Print("   " + line)
	}
	var unreal []string
	for _, c := range clusters {
		unreal = append(unreal, c.String())
	}
	fmt.Printf(`
   WaitCheckIn is no error: Fleet's agent has not reported yet. It can take agentCheckinInterval, 15 minutes,
   until an agent reports. Those of %s/%s and team/prod have applied their Bundles already. %s
   exist in memory only: no agent can run there, so they stay like this.
`, team, edge, strings.Join(unreal, ", "))
}

// watchdog runs the page until the stack is no more, or begins to stop: an API server that is to end waits
// for whoever watches. Its arguments are the stack's process and socket, then the command.
const watchdog = `stack=$1 socket=$2; shift 2; "$@" & page=$!
while kill -0 "$stack" 2>/dev/null && [ -S "$socket" ] && kill -0 "$page" 2>/dev/null; do sleep 1; done
kill "$page" 2>/dev/null`

// leavePage starts the same as a page, which stays when the demo has ended. It returns its address.
func (s *story) leavePage(dir string) (address string) {
	state, err := stack.ReadState(dir)
	s.must(err)
	path := filepath.Join(dir, "logs", "page.log")
	log, err := os.Create(path)
	s.must(err)
	page := exec.Command("sh", "-c", watchdog, "page", strconv.Itoa(state.Supervisor), state.Socket, //nolint:noctx // It stays.
		s.Program("kubectl-muster"), "view", "--kubeconfig="+s.Kubeconfig)
	page.Stdout, page.Stderr = log, log
	page.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.must(page.Start())
	s.must(poll.Until(s.ctx, "the page", patience, func(context.Context) error {
		written, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = written.Close() }()
		lines := bufio.NewScanner(written)
		lines.Scan()
		if address = lines.Text(); !strings.HasPrefix(address, "http://") {
			return fmt.Errorf("it has not said its address yet: %q", address)
		}
		return nil
	}))
	return address
}

func (s *story) showNext(page string) {
	fmt.Printf(`
Everything above was checked. The story took %s; the stack is still up. Try:

   export KUBECONFIG=$PWD/.dev/kubeconfig PATH=$PWD/.dev/bin:$PATH
   kubectl get clusters.cluster.x-k8s.io,clusters.fleet.cattle.io -A
   kubectl -n %[2]s describe clusters.cluster.x-k8s.io alpha
   kubectl muster tree
   kubectl muster trace edge-hello                 # on which clusters it is
   kubectl muster trace edge-hello %[2]s/alpha     # why it is not there
   kubectl -n %[2]s delete clusters.cluster.x-k8s.io --all     # and see group and mapping go
   make status     # what runs, and where it logs
   make down       # stop it all

The same as a page, until then: %[3]s
`, poll.Since(s.begin), team, page)
}
