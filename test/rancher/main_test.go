// Package rancher tests Muster with Rancher: the shipped manifests, the syncer and the webhook on a real API
// server, with Fleet's own controllers. The tests play Cluster API, Turtles and Rancher (player_test.go). From
// Rancher come two CRDs, and the way it writes its Fleet Clusters: wrangler's own apply.
//
// A witness records every Fleet Cluster and every Bundle of an agent from the first event on (witness_test.go), so
// a second agent fails a test even if it exists only for a moment.
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
	"github.com/muster-fleet/muster/test/rancher/player"
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
	if err := flag.Set("test.parallel", "6"); err != nil { // The tests wait more than they compute.
		panic(err)
	}
	options := stack.Options{Profile: stack.API, Fleet: true, Muster: true}
	os.Exit(stack.Main(m, options, func(s *stack.Stack) (err error) {
		if err := errors.Join(fixture.Use(&env, &admin)(s), s.ApplyCRDs(ctx, player.CRDs())); err != nil {
			return err
		}
		config, err := s.RESTConfig()
		if err != nil {
			return err
		}
		plays = &player.Player{Admin: admin, Config: config}
		seen, err = newWitness(s)
		return err
	}, nothingRefused, func(*stack.Stack) error { seen.stop(); return nil }))
}

// nothingRefused fails if RBAC or a policy refused a request of Muster's. It ignores requests that a test makes
// with Muster's account: their user agent is thiefAgent.
func nothingRefused(s *stack.Stack) error {
	return fixture.NothingRefused(s, "muster-system", []string{"muster-webhook", "muster-syncer"}, func(event stack.AuditEvent) bool {
		return strings.Contains(event.UserAgent, thiefAgent)
	})
}

// requests returns the syncer's writes since a time, if a line about them contains the path.
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
