// Command stack builds, starts, stops and shows the local stack of real parts: etcd,
// kube-apiserver, cert-manager, Cluster API, Fleet and Muster as host processes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

const usage = `usage: stack COMMAND [flags]

  build      build every part into .cache
  up         start the stack, or what of it has died, and return when it is ready
  down       stop it; no process is left, logs stay
  status     show what runs and where its log is
  reload     build Muster again, apply its manifests, restart it

flags of up:
`

func main() {
	log.SetLogger(logr.Discard()) // Otherwise controller-runtime prints where it first wanted to log.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		os.Exit(1)
	}
}

// settings are the flags of every command.
type settings struct {
	dir, profile              string
	withoutMuster, downstream bool
	// with are the optional components to start, separated by commas.
	with string
}

// components are Muster's optional components that have a program.
var components = []string{"helm", "registrar", "installer"}

// wanted returns the components that the flag with names.
func (set settings) wanted() ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(set.with, ",") {
		switch {
		case name == "":
		case set.withoutMuster:
			return nil, errors.New("--with needs Muster; leave --without-muster out")
		case !slices.Contains(components, name):
			return nil, fmt.Errorf("--with: there is no component %q; there are %s", name, strings.Join(components, ", "))
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

func run(ctx context.Context, args []string) error {
	dir, err := stack.DevDir()
	if err != nil {
		return err
	}
	var set settings
	flags := flag.NewFlagSet("stack", flag.ContinueOnError)
	flags.StringVar(&set.dir, "dir", dir, "where the stack keeps its files")
	flags.StringVar(&set.profile, "profile", "full", "api: API server, cert-manager and CRDs; full: Cluster API and Fleet as well")
	flags.BoolVar(&set.withoutMuster, "without-muster", false, "do not apply and run Muster itself")
	flags.BoolVar(&set.downstream, "downstream", false, "also start a second API server to deploy to")
	flags.StringVar(&set.with, "with", "", "also start these optional components of Muster: "+strings.Join(components, ","))
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		flags.Usage()
		return errors.New("name a command")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if set.profile != string(stack.API) && set.profile != string(stack.Full) {
		return fmt.Errorf("--profile is api or full, not %q", set.profile)
	}
	if set.dir, err = filepath.Abs(set.dir); err != nil {
		return err
	}
	command, known := map[string]func(settings, context.Context) error{
		"build": settings.build, "up": settings.up, "supervise": settings.supervise,
		"down": settings.down, "status": settings.status, "reload": settings.reload,
	}[args[0]]
	if !known {
		flags.Usage()
		return fmt.Errorf("unknown command %q", args[0])
	}
	if args[0] == "up" || args[0] == "down" {
		unlock, err := stack.LockDir(set.dir, func() { fmt.Println("waiting for another command to finish") })
		if err != nil {
			return err
		}
		defer unlock()
	}
	return command(set, ctx)
}

func (set settings) build(ctx context.Context) error {
	begin := time.Now()
	var more []parts.Module
	if stack.Profile(set.profile) == stack.Full {
		more = parts.Nodes
	}
	tools, err := stack.Build(ctx, stack.Profile(set.profile), os.Stdout, more...)
	if err != nil {
		return err
	}
	if !set.withoutMuster {
		if err := tools.BuildMuster(ctx, os.Stdout); err != nil {
			return err
		}
	}
	fmt.Printf("all parts are built (%s)\n", poll.Since(begin))
	return nil
}

func (set settings) up(ctx context.Context) error {
	begin := time.Now()
	wanted, err := set.wanted()
	if err != nil {
		return err
	}
	state, err := stack.ReadState(set.dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = set.spawn(ctx)
	case err != nil:
		return err
	case !state.SupervisorAlive() || !state.Ready:
		// What it held died with it; in-memory clusters have no life after that.
		fmt.Println("a stack that was not stopped in order is replaced")
		if _, err := stack.TearDown(set.dir); err != nil {
			return err
		}
		err = set.spawn(ctx)
	case string(state.Profile) != set.profile || state.Muster == set.withoutMuster:
		return fmt.Errorf("a stack of profile %s runs (with Muster: %t): stop it first", state.Profile, state.Muster)
	default:
		err = set.order(func(s *stack.Stack) error { return s.StartDead(ctx) })
	}
	if err != nil {
		return err
	}
	for _, name := range wanted {
		if err := set.startComponent(ctx, name); err != nil {
			return err
		}
	}
	if set.downstream {
		if err := set.order(func(s *stack.Stack) error {
			_, err := s.StartDownstream(ctx)
			return err
		}); err != nil {
			return err
		}
		fmt.Println("the downstream's kubeconfig is", relative(filepath.Join(set.dir, "downstream.kubeconfig")))
	}
	fmt.Printf("the stack is up (%s)\n\n  export KUBECONFIG=%s\n  export PATH=%s:$PATH   # kubectl\n",
		poll.Since(begin), filepath.Join(set.dir, "kubeconfig"), filepath.Join(set.dir, "bin"))
	return nil
}

func (set settings) spawn(ctx context.Context) error {
	return stack.SpawnSupervisor(ctx, set.dir, os.Stdout, "--profile="+set.profile, fmt.Sprintf("--without-muster=%t", set.withoutMuster))
}

// startComponent starts an optional component, unless it runs.
func (set settings) startComponent(ctx context.Context, name string) error {
	state, err := stack.ReadState(set.dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(state.Processes, func(p process.Status) bool { return p.Name == "muster-"+name && p.Running }) {
		return nil
	}
	return set.order(func(s *stack.Stack) error {
		if name == "helm" { // It may read the Secrets that HelmChartProxies name.
			return s.StartHelm(ctx)
		}
		return s.StartComponent(ctx, name)
	})
}

// order has the supervisor do something, and shows how it goes.
func (set settings) order(what func(*stack.Stack) error) error {
	s, err := stack.Attach(set.dir)
	if err != nil {
		return err
	}
	defer stack.Follow(set.dir, os.Stdout)()
	return what(s)
}

func (set settings) supervise(ctx context.Context) error {
	return stack.Supervise(ctx, stack.Options{
		Dir: set.dir, Profile: stack.Profile(set.profile), Muster: !set.withoutMuster, RuntimeSDK: true, Progress: os.Stdout,
	})
}

func (set settings) reload(ctx context.Context) error {
	return set.order(func(s *stack.Stack) error { return s.Reload(ctx) })
}

func (set settings) down(context.Context) error {
	begin := time.Now()
	count, err := stack.TearDown(set.dir)
	if err != nil {
		return err
	}
	if count == 0 {
		fmt.Println("no stack runs")
		return nil
	}
	fmt.Printf("stopped %d processes (%s); their logs are in %s\n", count, poll.Since(begin), filepath.Join(set.dir, "logs"))
	return nil
}

func (set settings) status(context.Context) error {
	state, err := stack.ReadState(set.dir)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Println("no stack runs")
		return nil
	}
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROCESS\tPID\tUP\tPORT\tLOG")
	for _, p := range append([]process.Status{{
		Name: "supervisor", Running: true, PID: state.Supervisor, Since: state.Since, Log: filepath.Join(set.dir, "logs", "supervisor.log"),
	}}, state.Processes...) {
		pid, since, port := "-", "dead", "-"
		if p.Running && p.Alive() {
			pid, since = fmt.Sprint(p.PID), time.Since(p.Since).Round(time.Second).String()
		}
		if p.Port != 0 {
			port = fmt.Sprint(p.Port)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", p.Name, pid, since, port, relative(p.Log))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Printf("\nprofile %s, kubeconfig %s\n", state.Profile, relative(filepath.Join(set.dir, "kubeconfig")))
	return nil
}

// relative shortens a path for people in the work tree.
func relative(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(here, path); err == nil && !strings.HasPrefix(short, "..") {
		return short
	}
	return path
}
