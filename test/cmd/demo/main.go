// Command demo plays Muster's main job on the stack of `make up`, with real objects and
// real controllers, and prints what happens. Each line with a check mark was checked:
// the command fails at the first that does not hold.
package main

import (
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
	if len(os.Args) > 1 && os.Args[1] == serveChartsCommand {
		s.must(serveCharts(ctx))
		return
	}
	play, known := map[string]func(*story){"": (*story).main, "charts": (*story).charts, "nat": (*story).nat}[os.Getenv("STORY")]
	if !known {
		s.must(fmt.Errorf("there is no STORY=%s; there are charts and nat, and the main one without STORY", os.Getenv("STORY")))
	}
	dir, err := stack.DevDir()
	s.must(err)
	s.Stack, err = stack.Attach(dir)
	if len(os.Args) > 1 && os.Args[1] == "check-clean" {
		// Its clusters live in the memory of the old processes, so the demo starts over on a new stack.
		if err == nil && s.exists("namespace", team) {
			s.must(fmt.Errorf("the demo was played on this stack before"))
		}
		return
	}
	if err != nil {
		s.must(fmt.Errorf("no stack to play on; run make up first: %w", err))
	}
	play(s)
}

// main is the story without a name.
func (s *story) main() {
	s.configure()
	s.addHosted()
	s.addClass()
	s.addBundles()
	s.addClusters()
	s.deployDownstream() // While Cluster API provisions, which takes half a minute.
	s.addChart()
	s.waitForClusters()
	s.checkTargets()
	s.becomeReady()
	s.turnRed()
	s.upgrade()
	s.showTree()
	s.showNext(s.leavePage())
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
	tree, err := s.muster("tree", "--bundles")
	s.must(err)
	show(tree)
	var unreal []string
	for _, c := range clusters {
		unreal = append(unreal, c.String())
	}
	fmt.Printf(`
   ▲ is the Bundle that fails; Fleet's state of its cluster follows with the agent's next report.
   WaitCheckIn is no error: Fleet's agent has not reported yet. It can take agentCheckinInterval, 15 minutes, until an agent reports. Those of %s/%s and team/prod have
   applied their Bundles already. %s exist in memory only:
   no agent can run there, so they stay like this.
`, team, edge, strings.Join(unreal, ", "))
}

// watchdog runs a server until the stack is no more, or begins to stop: an API server that is to end waits
// for whoever watches. Its arguments are the stack's process and socket, then the command.
const watchdog = `stack=$1 socket=$2; shift 2; "$@" & server=$!
while kill -0 "$stack" 2>/dev/null && [ -S "$socket" ] && kill -0 "$server" 2>/dev/null; do sleep 1; done
kill "$server" 2>/dev/null`

// leavePage starts the same as a page, which stays when the demo has ended. It returns its address.
func (s *story) leavePage() string {
	return s.leave("page", s.Program("kubectl-muster"), "view", "--kubeconfig="+s.Kubeconfig)
}

// leave starts a server that stays when the demo has ended, and returns its address, which it prints first.
func (s *story) leave(name string, command ...string) (address string) {
	state, err := stack.ReadState(s.Dir())
	s.must(err)
	log, err := os.Create(s.logOf(name))
	s.must(err)
	server := exec.Command("sh", append([]string{"-c", watchdog, name, strconv.Itoa(state.Supervisor), state.Socket}, command...)...) //nolint:noctx // It stays.
	server.Stdout, server.Stderr = log, log
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.must(server.Start())
	s.must(poll.Until(s.ctx, name, patience, func(context.Context) error {
		written, err := os.ReadFile(s.logOf(name))
		if address, _, _ = strings.Cut(string(written), "\n"); err == nil && !strings.HasPrefix(address, "http") {
			err = fmt.Errorf("it has not said its address yet: %q", address)
		}
		return err
	}))
	return address
}

func (s *story) logOf(name string) string { return filepath.Join(s.Dir(), "logs", name+".log") }

// muster runs kubectl muster, and returns what it prints.
func (s *story) muster(args ...string) (string, error) {
	out, err := exec.CommandContext(s.ctx, s.Program("kubectl-muster"), append(args, "--kubeconfig="+s.Kubeconfig)...).Output()
	return string(out), err
}

func show(text string) {
	for line := range strings.Lines(text) {
		fmt.Print("   " + line)
	}
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
   kubectl muster trace alerts %[2]s/edge          # why it is red
   kubectl get hcp,hrp -A                              # the HelmChartProxy, and its release
   make demo STORY=charts     # a new version fails on the canary, and is aborted
   make demo STORY=nat        # a cluster that the management cluster need not reach
   kubectl -n %[2]s delete clusters.cluster.x-k8s.io --all     # and see group and mapping go
   make status     # what runs, and where it logs
   make down       # stop it all

The same as a page, until then: %[3]s
`, poll.Since(s.begin), team, page)
}
