// Package integration runs the shipped manifests and both programs against a real API
// server, with the CRDs of Cluster API and Fleet but without their controllers: the
// tests play those, and see exactly what Muster does.
package integration

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
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

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyDuration(2 * time.Second)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.API, Muster: true}, use))
}

// use lets tests run on a stack.
func use(s *stack.Stack) (err error) {
	env = s
	admin, err = fixture.Client(s)
	return err
}
