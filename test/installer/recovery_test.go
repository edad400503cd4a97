package installer

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Killed at any moment of an installation and of an upgrade, an installer that comes after
// it brings all to its end, and nothing twice.
func TestKilled(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("MUSTER_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const kills = 5
	g := fresh(t)
	secret(g, "charts", credentials())
	for _, version := range []string{"0.15.3", "0.16.0"} {
		ask(g, "{"+fromRepository("version: "+version)+"}")
		for range kills {
			time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second)))) // At a random moment.
			g.Expect(env.Kill(ctx, "muster-installer")).To(Succeed())
			g.Expect(env.Start(ctx, "muster-installer")).To(Succeed())
		}
		installed(g, version)
		for _, release := range releases(g) {
			g.Expect(release.Status).To(Equal("deployed"), "%+v", release)
			g.Expect(release.Chart).To(HaveSuffix("-" + version))
		}
		history, err := shelf.run("history", "fleet", "-n", fleetNamespace, "-o", "json")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Count(history, `"status":"deployed"`)).To(Equal(1), history)
		g.Expect(history).NotTo(ContainSubstring("pending"))
		var deployments appsv1.DeploymentList
		g.Expect(admin.List(ctx, &deployments, client.InNamespace(fleetNamespace))).To(Succeed())
		g.Expect(deployments.Items).To(HaveLen(3))
	}
	imports(g, "survivor")
}

// CRDs stay, whoever uninstalls what.
func TestCRDsStay(t *testing.T) {
	g := fresh(t)
	secret(g, "charts", credentials())
	ask(g, "{"+fromRepository("version: 0.16.0")+"}")
	installed(g, "0.16.0")
	g.Expect(env.Apply(ctx, "{apiVersion: fleet.cattle.io/v1alpha1, kind: ClusterGroup, metadata: {namespace: default, name: kept}, spec: {selector: {}}}")).To(Succeed())
	ask(g, "{}")
	for _, name := range []string{"fleet", "fleet-crd"} {
		_, err := shelf.run("uninstall", name, "-n", fleetNamespace)
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err := env.Kubectl(ctx, "get", "clustergroup", "kept", "-n", "default")
	g.Expect(err).NotTo(HaveOccurred())
	ask(g, "{"+fromRepository("version: 0.16.1")+"}")
	installed(g, "0.16.1")
	_, err = env.Kubectl(ctx, "get", "clustergroup", "kept", "-n", "default")
	g.Expect(err).NotTo(HaveOccurred())
}
