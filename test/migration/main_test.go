// Package migration moves a management cluster from CAAPF to Muster by the steps of
// docs/migrate-from-caapf.md, and back. CAAPF is played.
package migration

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

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.Full}, fixture.Use(&env, &admin)))
}
