// Package registrar runs the optional component of that name, as shipped, against a real API server. The tests play
// Fleet, and see exactly what the registrar does.
package registrar

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	thiefAgent = "thief"
	process    = "muster-registrar"
	// records is the namespace where Fleet leaves credentials, and the registrar keeps its records.
	records = "cattle-fleet-clusters-system"
)

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
		return errors.Join(fixture.Use(&env, &admin)(s), setServer("https://fleet.example.com"), startBeforeFleet())
	}, nothingRefused))
}

// startBeforeFleet starts the registrar before one of Fleet's CRDs exists: it waits, and needs no restart.
func startBeforeFleet() error {
	const crd = "clusterregistrations.fleet.cattle.io"
	saved, err := env.Kubectl(ctx, "get", "crd", crd, "-o", "yaml")
	if err != nil {
		return err
	}
	if _, err := env.Kubectl(ctx, "delete", "crd", crd); err != nil {
		return err
	}
	if err := env.StartComponent(ctx, "registrar"); err != nil {
		return err
	}
	if err := poll.Until(ctx, "the registrar to wait for Fleet", time.Minute, func(context.Context) error {
		if log := env.LogTail(process); !strings.Contains(log, "ClusterRegistration.fleet.cattle.io") {
			return errors.New(log)
		}
		return nil
	}); err != nil {
		return err
	}
	_, err = env.KubectlInput(ctx, regexp.MustCompile(`(?m)^  (resourceVersion|uid): .*\n`).ReplaceAllString(saved, ""), "create", "-f", "-")
	return err
}

// setServer plays Fleet's chart: it sets the address at which agents reach Fleet.
func setServer(url string) error { return env.Apply(ctx, fixture.FleetSettings(url)) }

// asked returns the registrar's requests.
func asked(s *stack.Stack, where func(stack.AuditEvent) bool) ([]stack.AuditEvent, error) {
	return s.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", process), Where: func(e stack.AuditEvent) bool {
		return e.UserAgent != thiefAgent && where(e)
	}})
}

// nothingRefused checks the audit log when all tests are done. The API server refuses the registrar two things: to
// overwrite Secrets that are not manifests, which only a policy can distinguish, and to exceed a quota.
func nothingRefused(s *stack.Stack) error {
	all, err := asked(s, func(stack.AuditEvent) bool { return true })
	if err == nil && len(all) == 0 {
		err = errors.New("the registrar has asked for nothing")
	}
	for _, e := range all {
		if e.Code == http.StatusForbidden && e.Name != "forged-fleet-agent" && e.Name != "full-fleet-agent" {
			err = fmt.Errorf("the registrar was refused: %s: %s", e, e.Reason)
		}
		if e.Resource == "secrets" && e.Namespace != records && e.Verb != "create" && e.Verb != "update" {
			err = fmt.Errorf("the registrar reads Secrets: %s", e)
		}
	}
	return err
}
