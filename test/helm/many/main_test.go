// Package many rolls charts out over many Clusters, with Fleet's own controller and simulated agents. Cluster API
// does not run.
package many

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	namespace = "many"
	// clusters is the number of Clusters, and few is how many of them some HelmChartProxies select.
	clusters, few = 200, 50
	// patience is how long anything may take.
	patience = 5 * time.Minute
)

var (
	ctx    = context.Background()
	env    *stack.Stack
	admin  client.WithWatch
	charts *repository.Repository
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	options := stack.Options{Profile: stack.API, Parts: []parts.Module{parts.Fleet}, Muster: true}
	os.Exit(stack.Main(m, options, prepare, func(s *stack.Stack) error {
		return fixture.NothingRefused(s, "muster-system", []string{"muster-helm"}, nil)
	}))
}

func clusterName(i int) string { return fmt.Sprintf("c%03d", i) }

// prepare creates the Clusters, and waits for their import.
func prepare(s *stack.Stack) (err error) {
	env = s
	if admin, err = fixture.Client(s); err != nil {
		return err
	}
	charts = repository.New()
	charts.Open()
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0", "1.3.0"} {
		if err := charts.Publish("simple", version, map[string]string{"values.yaml": "{}"}); err != nil {
			return err
		}
	}
	if err := errors.Join(s.StartFleetController(ctx), s.StartHelm(ctx)); err != nil {
		return err
	}
	if err := s.Apply(ctx, fmt.Sprintf(`
{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {cluster: {}}}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]s, name: repository}, data: {ca.crt: %[2]s}}
`, namespace, base64.StdEncoding.EncodeToString(charts.CA))); err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(8)
	for i := range clusters {
		group.Go(func() error { return importCluster(i) })
	}
	return group.Wait()
}

// importCluster makes a Cluster, and gives its Fleet Cluster a namespace as Fleet does when an agent is deployed.
func importCluster(i int) error {
	cluster := fixture.Cluster(namespace, clusterName(i), "", "")
	cluster.Labels = map[string]string{"many": "yes"}
	if i < canaries {
		cluster.Labels["canary"] = "yes"
	}
	if i < few {
		cluster.Labels["few"] = "yes"
	}
	if err := errors.Join(admin.Create(ctx, cluster), fixture.Initialize(ctx, admin, cluster)); err != nil {
		return err
	}
	key, fleet := client.ObjectKeyFromObject(cluster), &fleetv1.Cluster{}
	if err := poll.Until(ctx, "Fleet Cluster "+key.Name, patience, func(ctx context.Context) error { return admin.Get(ctx, key, fleet) }); err != nil {
		return err
	}
	its := &corev1.Namespace{} // The stack makes it.
	its.Name = oracle.FleetNamespace(key)
	return poll.Until(ctx, "Namespace "+its.Name, patience, func(ctx context.Context) error { return admin.Get(ctx, client.ObjectKeyFromObject(its), its) })
}
