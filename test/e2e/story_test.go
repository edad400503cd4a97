package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

const (
	// nextClassNamespace holds the same class again, for rebasing.
	nextClassNamespace = "next-classes"
	group              = stack.InMemoryClass + "." + classNamespace
	cidrs              = "'${ .ClusterValues.Cluster.spec.clusterNetwork.pods.cidrBlocks }'"
)

var (
	// home is a Cluster in the namespace of the class, and has the same name as one, a Cluster in the namespace of
	// the team. The Bundle of home's Fleet agent must not reach one.
	home  = types.NamespacedName{Namespace: classNamespace, Name: "one"}
	one   = types.NamespacedName{Namespace: "team", Name: "one"}
	two   = types.NamespacedName{Namespace: "team", Name: "two"}
	three = types.NamespacedName{Namespace: "other", Name: "three"}
)

// The main story: classes in one namespace, Clusters of these classes in other namespaces, and bundles that reach
// exactly the Clusters that they should.
func TestStory(t *testing.T) {
	g := NewWithT(t)
	namespaces(g, "team", "other")
	inMemoryClass(g, classNamespace)
	inMemoryClass(g, nextClassNamespace)
	bundles(g, nextClassNamespace, "any", "{clusterSelector: {}}")
	bundles(g, nextClassNamespace, "next", "{clusterGroup: "+stack.InMemoryClass+"."+nextClassNamespace+"}")
	bundles(g, classNamespace, "beside-class", "{clusterGroup: "+group+"}")
	bundles(g, classNamespace, "values", "{clusterGroup: "+group+", helm: {values: {cidrs: "+cidrs+"}}}")
	bundles(g, "team", "beside-cluster", "{clusterName: one}")
	helmOp(t, g, classNamespace, "from-helmop", group)
	for i, key := range []types.NamespacedName{home, one, two, three} {
		cluster := stack.TopologyCluster{Namespace: key.Namespace, Name: key.Name, PodCIDR: fmt.Sprintf("10.%d.0.0/16", i+1)}
		if key != home {
			cluster.ClassNamespace = classNamespace
		}
		g.Expect(kubectlApply(g, cluster.YAML(), "-o", "yaml")).To(ContainSubstring("fleet.addons.cluster.x-k8s.io/cluster-name: " + key.Name))
	}

	for _, key := range []types.NamespacedName{one, two, three} {
		t.Run("bundles reach "+key.String()+" soon after its import", func(t *testing.T) {
			g := NewWithT(t)
			imported := waitImported(t, g, key)
			g.Eventually(func(g Gomega) {
				g.Expect(deployments(g, key)).To(ContainElements("classes/beside-class", "classes/values", "classes/from-helmop"))
			}).WithTimeout(time.Until(imported.Add(soon))).Should(Succeed())
			t.Logf("%s after its import", time.Since(imported).Round(100*time.Millisecond))
		})
	}
	t.Run("Fleet's agent of the namesake beside the class is not mapped", testAgentBundle)
	t.Run("a Cluster in v1beta1 gets the same stamp, its labels from the API server itself", testVersions)
	t.Run("the team's bundle reaches the team's cluster only", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) { g.Expect(deployments(g, one)).To(ContainElement("team/beside-cluster")) }).Should(Succeed())
		for _, key := range []types.NamespacedName{home, two} {
			g.Expect(deployments(g, key)).NotTo(ContainElement("team/beside-cluster"))
		}
	})
	t.Run("a value renders to the cluster's own CIDR", func(t *testing.T) {
		g := NewWithT(t)
		for key, cidr := range map[types.NamespacedName]string{one: "10.2.0.0/16", three: "10.4.0.0/16"} {
			g.Eventually(func(g Gomega) {
				var secret corev1.Secret
				g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: fleetNamespace(g, key), Name: "values"}, &secret)).To(Succeed())
				var values map[string]any
				g.Expect(yaml.Unmarshal(secret.Data["values"], &values)).To(Succeed())
				g.Expect(fmt.Sprint(values["cidrs"])).To(ContainSubstring(cidr))
			}).Should(Succeed())
		}
	})
	t.Run("rebased: the bundles of the old class are removed, those of the new one deployed", testRebase)
	t.Run("deselected: the bundles of the class are removed, siblings keep theirs", testLeaving)
	t.Run("deleted: nothing is left", testDeletion)
	t.Run("no request was refused", func(t *testing.T) {
		NewWithT(t).Expect(fixture.NothingRefused(env, "muster-system", []string{"muster-webhook", "muster-syncer"}, nil)).To(Succeed())
	})
}

// testAgentBundle checks Fleet's bundle for its agent on classes/one. Its target names the cluster "one", so an
// open mapping would also target it at team/one.
func testAgentBundle(t *testing.T) {
	g := NewWithT(t)
	waitImported(t, g, home)
	targets := func(g Gomega) int {
		var bundle fleetv1.Bundle
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: classNamespace, Name: "fleet-agent-one"}, &bundle)).To(Succeed())
		return bundle.Status.Summary.DesiredReady
	}
	g.Eventually(func(g Gomega) { g.Expect(targets(g)).To(BeNumerically(">=", 1)) }).Should(Succeed())
	// Fleet reconciles the bundle again, now that all objects exist.
	kubectl(g, "-n", classNamespace, "annotate", "bundles.fleet.cattle.io", "fleet-agent-one", "reconcile-at=now")
	g.Consistently(targets).WithTimeout(3 * time.Second).Should(Equal(1))
}

// testVersions applies Clusters in v1beta1: to the webhook, and to the component that labels Clusters without the
// webhook.
func testVersions(t *testing.T) {
	g := NewWithT(t)
	applied := func(g Gomega, namespace, more string) string {
		return kubectlApply(g, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {namespace: %s, name: old}
spec: {clusterNetwork: {pods: {cidrBlocks: [10.9.0.0/16]}}, topology: {class: %s, version: v1.33.0%s}}
`, namespace, stack.InMemoryClass, more), "--dry-run=server", "-o", "yaml")
	}
	labelled := And(ContainSubstring("clusterclass-name.fleet.addons.cluster.x-k8s.io: "+stack.InMemoryClass),
		ContainSubstring("clusterclass-namespace.fleet.addons.cluster.x-k8s.io: "+classNamespace))
	g.Expect(applied(g, "team", ", classNamespace: "+classNamespace)).To(And(labelled,
		ContainSubstring("fleet.addons.cluster.x-k8s.io/owned-by: fleet-addon-config"), ContainSubstring("fleet.addons.cluster.x-k8s.io/cluster-name: old")))

	if !parts.Chosen.HasMutatingPolicies() {
		return
	}
	t.Cleanup(func() {
		_, err := env.Kubectl(ctx, "delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels")
		g.Expect(errors.Join(err, env.Start(ctx, "muster-webhook"))).To(Succeed())
	})
	g.Expect(env.StartComponent(ctx, "class-labels")).To(Succeed())
	g.Expect(env.Stop(ctx, "muster-webhook")).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(applied(g, classNamespace, "")).To(And(labelled, Not(ContainSubstring("fleet.addons.cluster.x-k8s.io/owned-by"))), "the webhook is up")
	}).Should(Succeed())
}

// testRebase moves the only user of a class in a namespace to another class, and back. Bundles from the namespace
// of the old class go, including Bundles that match any cluster.
func testRebase(t *testing.T) {
	g := NewWithT(t)
	siblings := list(g, fleetNamespace(g, one))
	for _, step := range []struct {
		from, to string
		want     []string
	}{
		{classNamespace, nextClassNamespace, []string{"next-classes/next", "next-classes/any"}},
		{nextClassNamespace, classNamespace, []string{"classes/beside-class", "classes/values", "classes/from-helmop"}},
	} {
		begin := time.Now()
		kubectl(g, "-n", "other", "patch", "clusters.cluster.x-k8s.io", "three", "--type=merge",
			"-p", `{"spec":{"topology":{"classRef":{"namespace":"`+step.to+`"}}}}`)
		g.Eventually(func(g Gomega) { g.Expect(deployments(g, three)).To(ConsistOf(step.want)) }).WithTimeout(soon).Should(Succeed())
		t.Logf("from %s to %s: the bundles were exchanged after %s", step.from, step.to, time.Since(begin).Round(100*time.Millisecond))
		mappingGone(g, step.from, "other")
	}
	g.Expect(list(g, fleetNamespace(g, one))).To(Equal(siblings))
}

// testLeaving deselects the last user of a class in a namespace.
func testLeaving(t *testing.T) {
	g := NewWithT(t)
	siblings, before := list(g, fleetNamespace(g, one)), fleetNamespace(g, three)
	begin := time.Now()
	kubectlApply(g, `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {cluster: {onDeselect: Delete, namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [other]}]}}}
`)
	g.Eventually(func(g Gomega) { g.Expect(list(g, before)).To(BeEmpty()) }).WithTimeout(soon).Should(Succeed())
	t.Logf("the bundles were gone after %s", time.Since(begin).Round(100*time.Millisecond))
	g.Expect(list(g, fleetNamespace(g, one))).To(Equal(siblings))
	mappingGone(g, classNamespace, "other")
}

func testDeletion(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	kubectl(g, "delete", "clusters.cluster.x-k8s.io", "--all", "-n", "team", "--timeout=120s")
	t.Logf("kubectl delete returned after %s", time.Since(begin).Round(100*time.Millisecond))
	g.Eventually(func(g Gomega) {
		g.Expect(kubectl(g, "get", "clusters.fleet.cattle.io,clustergroups.fleet.cattle.io", "-n", "team", "-o", "name")).To(BeEmpty())
		g.Expect(strings.Fields(kubectl(g, "get", "bundlenamespacemappings", "-n", classNamespace, "-o", "name"))).To(BeEmpty())
	}).Should(Succeed())
}

// helmOp creates a HelmOp with a chart from a server that the test runs.
func helmOp(t *testing.T, g Gomega, namespace, name, group string) {
	t.Helper()
	archive, err := repository.Archive("hello", "0.1.0", nil)
	g.Expect(err).NotTo(HaveOccurred())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(archive) }))
	t.Cleanup(server.Close)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: HelmOp
metadata: {namespace: %s, name: %s}
spec:
  defaultNamespace: default
  helm: {chart: "%s/hello-0.1.0.tgz"}
  targets: [{clusterGroup: %s}]
`, namespace, name, server.URL, group))).To(Succeed())
}
