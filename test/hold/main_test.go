// Package hold tests that an upgrade waits for its add-ons, on the whole stack: Cluster API with the gate RuntimeSDK,
// clusters with API servers of their own, Fleet's own controllers, and its agents.
package hold

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	team = "team"
	// soon is how long Fleet and its agents may take to follow.
	soon = 2 * time.Minute
)

var (
	ctx    = context.Background()
	env    *stack.Stack
	admin  client.WithWatch
	charts *repository.Repository
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(soon)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.Full, CheckIn: "5s", Muster: true, RuntimeSDK: true}, prepare))
}

func prepare(s *stack.Stack) (err error) {
	env = s
	if admin, err = fixture.Client(s); err != nil {
		return err
	}
	charts = repository.New()
	return fixture.HelmOnHost(ctx, s, team)
}
