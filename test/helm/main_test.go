// Package helm runs the optional component helm, as shipped, in the whole stack: Cluster
// API, Fleet's own controllers, and its agents on clusters with API servers of their own.
package helm

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
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
	// checkIn is how often the agents check in.
	checkIn = "5s"
)

var (
	ctx      = context.Background()
	env      *stack.Stack
	admin    client.Client
	charts   *repository.Repository
	one, two = cluster{team, "one"}, cluster{team, "two"}
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(soon)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.Full, CheckIn: checkIn, Muster: true}, prepare, nothingRefused))
}

func prepare(s *stack.Stack) (err error) {
	env = s
	if admin, err = fixture.Client(s); err != nil {
		return err
	}
	charts = repository.New()
	if err := fixture.HelmOnHost(ctx, s, team); err != nil {
		return err
	}
	for i, its := range []cluster{one, two} {
		if err := s.Apply(ctx, its.yaml(i)); err != nil {
			return err
		}
	}
	for _, its := range []cluster{one, two} {
		if err := s.WaitForBundles(ctx, its.namespace, its.name); err != nil {
			return err
		}
	}
	return nil
}

// nothingRefused checks, when the tests are over, that the API server refused no request of the program, and
// that the program used only the verbs for Secrets that it needs.
func nothingRefused(s *stack.Stack) error {
	all, err := s.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-helm")})
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("muster-helm has sent no requests")
	}
	for _, e := range all {
		if e.Code == http.StatusForbidden && e.Resource != "policies" { // TestPolicyThatMusterDoesNotKnow takes that right.
			return fmt.Errorf("muster-helm was refused: %s: %s", e, e.Reason)
		}
		if e.Resource == "secrets" && !slices.Contains([]string{"get", "create", "update"}, e.Verb) {
			return fmt.Errorf("muster-helm does more with Secrets than it needs: %s", e)
		}
	}
	return nil
}

// cluster is a Cluster with an API server of its own.
type cluster struct{ namespace, name string }

func (c cluster) yaml(number int) string {
	return fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %s, name: %s, labels: {nginxIngressChart: enabled}}
spec:
  clusterNetwork:
    pods: {cidrBlocks: [10.%d.0.0/16]}
    services: {cidrBlocks: [10.128.0.0/12]}
  topology:
    classRef: {name: standard, namespace: classes}
    version: v1.36.3
    controlPlane: {replicas: 1}
    workers: {machineDeployments: [{class: default-worker, name: md-0, replicas: 1}]}
`, c.namespace, c.name, 200+number)
}

func (c cluster) kubectl(args ...string) (string, error) {
	return env.HostedKubectl(ctx, c.namespace, c.name, args...)
}
