// Package fleetinstaller runs the component installer, as shipped, where there is no Fleet. The installer installs
// the real charts, from a repository and a registry that the tests start, and a played node runs the installed
// programs.
package fleetinstaller

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	fleetNamespace = "cattle-fleet-system"
	thiefAgent     = "thief"
	// somebodys is the name of objects that the installer must leave alone.
	somebodys = "somebodys"
	// patience is how long Helm may wait for Pods and their programs to start.
	patience = 3 * time.Minute
)

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
	shelf *charts
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	SetDefaultConsistentlyDuration(3 * time.Second)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.API, WithoutFleet: true, Muster: true}, prepare, nothingRefused))
}

func prepare(s *stack.Stack) (err error) {
	env = s
	if admin, err = fixture.Client(s); err != nil {
		return err
	}
	// Fleet's chart tolerates this taint and Muster's Deployments do not, because they already run as processes.
	if err := s.StartNode(ctx, corev1.Taint{Key: "cattle.io/os", Value: "linux", Effect: corev1.TaintEffectNoSchedule}); err != nil {
		return err
	}
	if shelf, err = newCharts(); err != nil {
		return err
	}
	if err := publish(s); err != nil {
		return err
	}
	if err := s.StartComponent(ctx, "installer"); err != nil {
		return err
	}
	// The flags shorten two intervals, of an hour and of five minutes.
	if _, err := s.Kubectl(ctx, "patch", "deployment", "muster-installer", "-n", "muster-system", "--type=json", "-p",
		`[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--helm-timeout=45s"},
		  {"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--lookup-interval=5s"}]`); err != nil {
		return err
	}
	return s.Restart(ctx, "muster-installer")
}

// publish plays kubeadm: it publishes the address of the cluster's API server.
func publish(s *stack.Stack) error {
	config, err := s.RESTConfig()
	if err != nil {
		return err
	}
	return s.Apply(ctx, clusterInfo(config.Host, string(config.CAData)))
}

// nothingRefused checks the audit log when all tests are done.
func nothingRefused(s *stack.Stack) error {
	return fixture.NothingRefused(s, "muster-system", []string{"muster-installer"}, func(e stack.AuditEvent) bool {
		return e.UserAgent == thiefAgent || e.Name == somebodys
	})
}
