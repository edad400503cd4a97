package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/process"
)

var commands = map[string]func(context.Context, settings, []string) error{
	"build":      build,
	"up":         alone(up),
	"supervise":  supervise,
	"down":       alone(down),
	"status":     status,
	"start":      onProcess((*stack.Stack).Start),
	"stop":       onProcess((*stack.Stack).Stop),
	"kill":       onProcess((*stack.Stack).Kill),
	"restart":    onProcess((*stack.Stack).Restart),
	"reload":     reload,
	"downstream": downstream,
	"agent":      agent,
}

// alone keeps up and down of the same stack from each other's way.
func alone(command func(context.Context, settings, []string) error) func(context.Context, settings, []string) error {
	return func(ctx context.Context, set settings, args []string) error {
		unlock, err := stack.LockDir(set.dir, func() { fmt.Println("waiting for another command to finish") })
		if err != nil {
			return err
		}
		defer unlock()
		return command(ctx, set, args)
	}
}

func (s *settings) complete() error {
	if s.profile != string(stack.API) && s.profile != string(stack.Full) {
		return fmt.Errorf("--profile is api or full, not %q", s.profile)
	}
	if s.dir == "" {
		var err error
		s.dir, err = stack.DevDir()
		return err
	}
	var err error
	s.dir, err = filepath.Abs(s.dir)
	return err
}

func build(ctx context.Context, set settings, _ []string) error {
	begin := time.Now()
	tools, err := stack.Build(ctx, stack.Profile(set.profile), os.Stdout)
	if err != nil {
		return err
	}
	if !set.withoutMuster {
		if err := tools.BuildMuster(ctx, os.Stdout); err != nil {
			return err
		}
	}
	fmt.Printf("all parts are built (%s)\n", time.Since(begin).Round(100*time.Millisecond))
	return nil
}

func up(ctx context.Context, set settings, _ []string) error {
	begin := time.Now()
	state, err := stack.ReadState(set.dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = spawn(ctx, set)
	case err != nil:
		return err
	case !state.SupervisorAlive() || !state.Ready:
		// What it held died with it; in-memory clusters have no life after that.
		fmt.Println("a stack that was not stopped in order is replaced")
		if _, err := stack.TearDown(set.dir); err != nil {
			return err
		}
		err = spawn(ctx, set)
	case string(state.Profile) != set.profile || state.Muster == set.withoutMuster:
		return fmt.Errorf("a stack of profile %s runs (with Muster: %t): stop it first", state.Profile, state.Muster)
	default:
		err = revive(ctx, set)
	}
	if err != nil {
		return err
	}
	if set.downstream {
		if err := downstream(ctx, set, nil); err != nil {
			return err
		}
	}
	fmt.Printf("the stack is up (%s)\n\n  export KUBECONFIG=%s\n  export PATH=%s:$PATH   # kubectl\n",
		time.Since(begin).Round(100*time.Millisecond), filepath.Join(set.dir, "kubeconfig"), filepath.Join(set.dir, "bin"))
	return nil
}

func spawn(ctx context.Context, set settings) error {
	args := []string{"--profile=" + set.profile}
	if set.withoutMuster {
		args = append(args, "--without-muster")
	}
	return stack.SpawnSupervisor(ctx, set.dir, os.Stdout, args...)
}

func revive(ctx context.Context, set settings) error {
	s, err := stack.Attach(set.dir)
	if err != nil {
		return err
	}
	defer stack.Follow(set.dir, os.Stdout)()
	return s.StartDead(ctx)
}

func supervise(ctx context.Context, set settings, _ []string) error {
	return stack.Supervise(ctx, stack.Options{
		Dir: set.dir, Profile: stack.Profile(set.profile), Muster: !set.withoutMuster, Progress: os.Stdout,
	})
}

func down(_ context.Context, set settings, _ []string) error {
	begin := time.Now()
	count, err := stack.TearDown(set.dir)
	if err != nil {
		return err
	}
	if count == 0 {
		fmt.Println("no stack runs")
		return nil
	}
	fmt.Printf("stopped %d processes (%s); their logs are in %s\n",
		count, time.Since(begin).Round(100*time.Millisecond), filepath.Join(set.dir, "logs"))
	return nil
}

func status(_ context.Context, set settings, _ []string) error {
	state, err := stack.ReadState(set.dir)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Println("no stack runs")
		return nil
	}
	if err != nil {
		return err
	}
	alive := state.SupervisorAlive()
	processes := append([]process.Status{{
		Name: "supervisor", Running: alive, PID: state.Supervisor, Since: state.Since,
		Log: filepath.Join(set.dir, "logs", "supervisor.log"),
	}}, state.Processes...)
	if alive && state.Ready {
		s, err := stack.Attach(set.dir)
		if err != nil {
			return err
		}
		processes = append(processes[:1], s.Processes()...)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROCESS\tPID\tUP\tPORT\tLOG")
	for _, p := range processes {
		pid, since, port := "-", "dead", "-"
		if p.Running && alive {
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

func onProcess(do func(*stack.Stack, context.Context, string) error) func(context.Context, settings, []string) error {
	return func(ctx context.Context, set settings, names []string) error {
		s, err := stack.Attach(set.dir)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return errors.New("name a process; see `stack status`")
		}
		for _, name := range names {
			if err := do(s, ctx, name); err != nil {
				return err
			}
		}
		return nil
	}
}

func reload(ctx context.Context, set settings, _ []string) error {
	s, err := stack.Attach(set.dir)
	if err != nil {
		return err
	}
	defer stack.Follow(set.dir, os.Stdout)()
	return s.Reload(ctx)
}

func downstream(ctx context.Context, set settings, _ []string) error {
	s, err := stack.Attach(set.dir)
	if err != nil {
		return err
	}
	defer stack.Follow(set.dir, os.Stdout)()
	if _, err = s.StartDownstream(ctx); err == nil {
		fmt.Printf("the downstream's kubeconfig is %s\n", relative(s.DownstreamKubeconfig()))
	}
	return err
}

func agent(ctx context.Context, set settings, names []string) error {
	s, err := stack.Attach(set.dir)
	if err != nil {
		return err
	}
	defer stack.Follow(set.dir, os.Stdout)()
	namespace := stack.DefaultAgentNamespace
	if len(names) > 0 {
		namespace = names[0]
	}
	return s.StartAgent(ctx, namespace)
}
