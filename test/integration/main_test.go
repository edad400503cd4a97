// Package integration runs the shipped manifests and both programs against a real API
// server, with the CRDs of Cluster API and Fleet but without their controllers: the
// tests play those, and see exactly what Muster does.
package integration

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
	webhookProcess = "muster-webhook"
	syncerProcess  = "muster-syncer"
	// patience is how long a condition may take on a loaded machine before it fails.
	patience = 30 * time.Second
)

var (
	ctx = context.Background()
	env *stack.Stack
	// admin is a client with all rights; what Muster does is done by its own ServiceAccounts.
	admin client.Client
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	log.SetLogger(logr.Discard())
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyDuration(2 * time.Second)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)

	var err error
	env, err = stack.Up(ctx, stack.Options{Profile: stack.API, Muster: true, Progress: os.Stderr, Dir: os.Getenv("MUSTER_TEST_DIR")})
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
		for _, name := range []string{webhookProcess, syncerProcess} {
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
