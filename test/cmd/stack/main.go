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
	"strings"
	"syscall"
)

const usage = `usage: stack COMMAND [flags] [NAME]

  build                build every part into .cache
  up                   start the stack and return when it is ready
  down                 stop it; no process is left, logs stay
  status               show what runs and where its log is
  start|stop|kill|restart NAME
                       start or end one process of the running stack
  reload               build Muster again, apply its manifests, restart it
  downstream           start a second API server as a cluster to deploy to
  agent [NAMESPACE]    run Fleet's agent on it, once Fleet has imported it

flags of up:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		os.Exit(1)
	}
}

// settings are the flags of every command.
type settings struct {
	dir           string
	profile       string
	withoutMuster bool
	downstream    bool
}

func run(ctx context.Context, args []string) error {
	var set settings
	flags := flag.NewFlagSet("stack", flag.ContinueOnError)
	flags.StringVar(&set.dir, "dir", "", "where the stack keeps its files (default .dev in the work tree)")
	flags.StringVar(&set.profile, "profile", "full", "api: API server, cert-manager and CRDs; full: Cluster API and Fleet as well")
	flags.BoolVar(&set.withoutMuster, "without-muster", false, "do not apply and run Muster itself")
	flags.BoolVar(&set.downstream, "downstream", false, "also start a second API server to deploy to")
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		flags.Usage()
		return errors.New("name a command")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	command, known := commands[args[0]]
	if !known {
		flags.Usage()
		return fmt.Errorf("unknown command %q", args[0])
	}
	if err := set.complete(); err != nil {
		return err
	}
	return command(ctx, set, flags.Args())
}
