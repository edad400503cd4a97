// Package e2e runs the whole: Cluster API provisions clusters in memory, Muster
// imports them, and Fleet's own controllers target bundles at them.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
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

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	options := stack.Options{Profile: stack.Full, Muster: true}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "muster-former-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			err = takeFormer(&options, dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return stack.Main(m, options, fixture.Use(&env, &admin))
	}())
}
