// Package registrar runs the optional component of that name, as shipped, against a real API
// server. The tests play Fleet, and see exactly what the registrar does.
package registrar

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const thiefAgent = "thief"

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyDuration(3 * time.Second)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.API, Muster: true}, func(s *stack.Stack) error {
		if err := fixture.Use(&env, &admin)(s); err != nil {
			return err
		}
		if err := setServer("https://fleet.example.com"); err != nil {
			return err
		}
		return s.StartComponent(ctx, "registrar")
	}, nothingRefused))
}

// setServer plays Fleet's chart: it says by which address agents reach Fleet.
func setServer(url string) error { return env.Apply(ctx, fixture.FleetSettings(url)) }

// nothingRefused is asked when all tests are over. Two things are refused that are asked for:
// Secrets that are not manifests, which only a policy can tell apart, and what a quota forbids.
func nothingRefused(s *stack.Stack) error {
	all, err := s.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-registrar")})
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("the registrar has asked for nothing")
	}
	for _, e := range all {
		if e.UserAgent == thiefAgent {
			continue
		}
		if e.Code == http.StatusForbidden && e.Name != "forged-fleet-agent" && e.Name != "full-fleet-agent" {
			return fmt.Errorf("the registrar was refused: %s: %s", e, e.Reason)
		}
		isOwn := e.Namespace == "cattle-fleet-clusters-system"
		if e.Resource == "secrets" && !isOwn && e.Verb != "create" && e.Verb != "update" {
			return fmt.Errorf("the registrar reads Secrets: %s", e)
		}
	}
	return nil
}
