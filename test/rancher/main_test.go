// Package rancher runs Muster beside Rancher: the shipped manifests, the syncer and the webhook on a real API
// server, with Fleet's own controllers. Cluster API, Turtles and Rancher are played (player_test.go): of
// Rancher there are two CRDs, and how it writes its Fleet Clusters, which is wrangler's own apply.
//
// Throughout, every Fleet Cluster and every Bundle of an agent is noted from the first event on
// (witness_test.go): a second agent that was there for a moment fails a test, too.
package rancher

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	syncerProcess = "muster-syncer"
	// thiefAgent is the user agent of requests that a test makes with a token of Muster's.
	thiefAgent = "thief"
	// patience is how long a condition may take on a loaded machine before it fails.
	patience = 2 * time.Minute
)

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
	seen  *witness
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyDuration(2 * time.Second)
	if err := flag.Set("test.parallel", "6"); err != nil { // They wait more than they compute.
		panic(err)
	}
	options := stack.Options{Profile: stack.API, Fleet: true, Muster: true}
	os.Exit(stack.Main(m, options, func(s *stack.Stack) (err error) {
		if err := errors.Join(fixture.Use(&env, &admin)(s), s.ApplyCRDs(ctx, crds())); err != nil {
			return err
		}
		seen, err = newWitness(s)
		return err
	}, nothingRefused, func(*stack.Stack) error { seen.stop(); return nil }))
}

// nothingRefused fails if RBAC or a policy refused a request of Muster's. A tenant or a thief who uses an account
// says so in the user agent.
func nothingRefused(s *stack.Stack) error {
	return fixture.NothingRefused(s, "muster-system", []string{"muster-webhook", "muster-syncer"}, func(event stack.AuditEvent) bool {
		return strings.Contains(event.UserAgent, thiefAgent)
	})
}

// requests returns what the syncer has written since, to what the substring is in the path of.
func requests(g Gomega, since time.Time, path string) (found []string) {
	all, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", syncerProcess), Since: since})
	g.Expect(err).NotTo(HaveOccurred())
	for _, event := range all {
		if event.Verb != "get" && event.Verb != "list" && event.Verb != "watch" && strings.Contains(event.String(), path) && event.Code != http.StatusForbidden {
			found = append(found, event.String())
		}
	}
	return found
}
