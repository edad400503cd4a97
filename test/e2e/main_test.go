// Package e2e runs the whole: Cluster API provisions clusters in memory, Muster
// imports them, and Fleet's own controllers target bundles at them.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	syncerProcess = "muster-syncer"
	// soon is how long Fleet may take to follow. The contract says 10 s; how long it took
	// is printed, and is a second or two. A test waits longer, because a busy machine is
	// no defect.
	soon = time.Minute
)

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	log.SetLogger(logr.Discard())
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)

	var err error
	env, err = stack.Up(ctx, stack.Options{Profile: stack.Full, Muster: true, Progress: os.Stderr, Dir: os.Getenv("MUSTER_TEST_DIR")})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := env.Down(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	if admin, err = adminClient(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code = m.Run()
	if code != 0 {
		for _, name := range []string{"muster-webhook", syncerProcess} {
			fmt.Fprintf(os.Stderr, "--- the end of the log of %s\n%s\n", name, env.LogTail(name))
		}
	}
	return code
}

func adminClient() (client.Client, error) {
	config, err := env.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}
