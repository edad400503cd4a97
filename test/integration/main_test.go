// Package integration runs the shipped manifests and both programs against a real API server, with the CRDs of
// Cluster API and Fleet but without their controllers. The tests play those controllers, and see exactly what Muster
// does.
//
// Tests that need the FleetAddonConfig, stop a process or count all requests run one after another. The others keep
// to namespaces of their own, and run later, in parallel.
package integration

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	webhookProcess   = "muster-webhook"
	syncerProcess    = "muster-syncer"
	garbageCollector = "kube-controller-manager"
	// patience is how long a condition may take on a loaded machine.
	patience = 30 * time.Second
)

var (
	ctx = context.Background()
	env *stack.Stack
	// admin is a client with all rights; Muster acts through its own ServiceAccounts.
	admin client.Client
)

// use makes tests use a stack.
func use(s *stack.Stack) error { return errors.Join(fixture.Use(&env, &admin)(s), follow(s)) }

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyDuration(2 * time.Second)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)
	if err := flag.Set("test.parallel", "8"); err != nil { // Tests wait more than they compute.
		panic(err)
	}
	os.Exit(stack.Main(m, stack.Options{Profile: stack.API, Muster: true}, use, nothingRefused))
}

// ownStack gives a test a stack of its own, because the test would break others on a shared one. Until the test ends,
// all helpers use that stack.
func ownStack(t *testing.T, g Gomega) {
	t.Helper()
	ownStackOf(t, g, stack.Options{})
}

// ownStackOf is ownStack with the manifests and binaries of options.
func ownStackOf(t *testing.T, g Gomega, options stack.Options) {
	t.Helper()
	options.Profile, options.Muster, options.Progress = stack.API, true, os.Stderr
	own, err := stack.Up(ctx, options)
	g.Expect(err).NotTo(HaveOccurred())
	shared := env
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{webhookProcess, syncerProcess} {
				t.Logf("the end of the log of %s:\n%s", name, own.LogTail(name))
			}
		}
		if err := errors.Join(nothingRefused(own), own.Down(), use(shared)); err != nil {
			t.Error(err)
		}
	})
	g.Expect(use(own)).To(Succeed())
}
