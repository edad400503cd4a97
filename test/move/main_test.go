// Package move moves a cluster with clusterctl between two management clusters that both have Cluster API, Fleet and
// Muster. It uses the commands of docs/operations.md.
package move

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

var ctx = context.Background()

// side is a management cluster.
type side struct {
	*stack.Stack
	name  string
	admin client.Client
}

// home is where the clusters are made; it keeps their processes and files even while away manages them.
var home, away *side

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	options := stack.Options{Profile: stack.Full, Muster: true, RuntimeSDK: true}
	os.Exit(stack.Main(m, options, func(first *stack.Stack) error {
		second := options
		second.Progress = os.Stderr
		if dir := os.Getenv("MUSTER_TEST_DIR"); dir != "" {
			second.Dir = filepath.Join(dir, "away")
		}
		other, err := stack.Up(ctx, second)
		if err != nil {
			return err
		}
		home, away = &side{Stack: first, name: "home"}, &side{Stack: other, name: "away"}
		err = errors.Join(first.StartHostProvider(ctx), other.ShareHosts(ctx, first))
		for _, s := range []*side{home, away} {
			var failed error
			s.admin, failed = fixture.Client(s.Stack)
			err = errors.Join(err, failed)
		}
		if err != nil {
			return errors.Join(err, other.Down())
		}
		return nil
	}, func(*stack.Stack) error { return away.Down() }))
}
