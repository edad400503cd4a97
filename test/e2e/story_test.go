package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/stack"
)

const (
	classNamespace = "classes"
	// nextClassNamespace holds the same class again, to rebase to.
	nextClassNamespace = "next-classes"
	group              = stack.InMemoryClass + "." + classNamespace
)

// The main job, told once: classes in one namespace, Clusters of them in others, and
// bundles that reach exactly the Clusters they should.
func TestStory(t *testing.T) {
	g := NewWithT(t)
	for _, namespace := range []string{classNamespace, nextClassNamespace, "team", "other"} {
		g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	}
	for _, namespace := range []string{classNamespace, nextClassNamespace} {
		class, err := env.InMemoryClusterClass(namespace)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(env.Apply(ctx, class)).To(Succeed())
		g.Expect(env.WaitForClusterClass(ctx, namespace, stack.InMemoryClass)).To(Succeed())
	}

	bundles(g, nextClassNamespace, "any", "clusterSelector: {}")
	bundles(g, nextClassNamespace, "next", "clusterGroup: "+stack.InMemoryClass+"."+nextClassNamespace)
	bundles(g, classNamespace, "beside-class", "clusterGroup: "+group)
	bundles(g, classNamespace, "values", "clusterGroup: "+group+"\n    helm: {values: {cidrs: '${ .ClusterValues.Cluster.spec.clusterNetwork.pods.cidrBlocks }'}}")
	bundles(g, "team", "beside-cluster", "clusterName: one")
	helmOp(t, g, classNamespace, "from-helmop", group)

	// "one" exists beside the class and beside the bundles of the team: Fleet's agent
	// of the first must not reach the second.
	for _, cluster := range []stack.TopologyCluster{
		{Namespace: classNamespace, Name: "one", PodCIDR: "10.1.0.0/16"},
		{Namespace: "team", Name: "one", ClassNamespace: classNamespace, PodCIDR: "10.2.0.0/16"},
		{Namespace: "team", Name: "two", ClassNamespace: classNamespace, PodCIDR: "10.3.0.0/16"},
		{Namespace: "other", Name: "three", ClassNamespace: classNamespace, PodCIDR: "10.4.0.0/16"},
	} {
		out, err := env.KubectlInput(ctx, cluster.YAML(), "apply", "-f", "-", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("fleet.addons.cluster.x-k8s.io/cluster-name: " + cluster.Name))
	}

	for _, key := range []types.NamespacedName{{Namespace: "team", Name: "one"}, {Namespace: "team", Name: "two"}, {Namespace: "other", Name: "three"}} {
		t.Run("bundles reach "+key.String()+" soon after its import", func(t *testing.T) {
			g := NewWithT(t)
			imported := waitImported(t, g, key)
			g.Eventually(func(g Gomega) {
				g.Expect(deployments(g, key)).To(ContainElements(
					classNamespace+"/beside-class", classNamespace+"/values", classNamespace+"/from-helmop"))
			}).WithTimeout(time.Until(imported.Add(soon))).Should(Succeed())
			t.Logf("%s after its import", time.Since(imported).Round(100*time.Millisecond))
		})
	}
	t.Run("Fleet's agent of the namesake beside the class is not mapped", testAgentBundle)
	t.Run("a Cluster in v1beta1 gets the same stamp", func(t *testing.T) {
		g := NewWithT(t)
		out, err := env.KubectlInput(ctx, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {namespace: team, name: old}
spec: {clusterNetwork: {pods: {cidrBlocks: [10.9.0.0/16]}}, topology: {class: %s, classNamespace: %s, version: v1.33.0}}
`, stack.InMemoryClass, classNamespace), "apply", "--dry-run=server", "-o", "yaml", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
		for _, line := range []string{
			"clusterclass-name.fleet.addons.cluster.x-k8s.io: " + stack.InMemoryClass,
			"clusterclass-namespace.fleet.addons.cluster.x-k8s.io: " + classNamespace,
			"fleet.addons.cluster.x-k8s.io/owned-by: fleet-addon-config",
			"fleet.addons.cluster.x-k8s.io/cluster-name: old",
		} {
			g.Expect(out).To(ContainSubstring(line))
		}
	})
	t.Run("the API server itself labels a Cluster in v1beta1, with the component for it", func(t *testing.T) {
		g := NewWithT(t)
		t.Cleanup(func() {
			_, err := env.Kubectl(ctx, "delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels")
			g.Expect(errors.Join(err, env.Start(ctx, "muster-webhook"))).To(Succeed())
		})
		g.Expect(env.StartComponent(ctx, "class-labels")).To(Succeed())
		g.Expect(env.Stop(ctx, "muster-webhook")).To(Succeed())
		g.Eventually(func(g Gomega) {
			out, err := env.KubectlInput(ctx, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {namespace: %s, name: old}
spec: {clusterNetwork: {pods: {cidrBlocks: [10.9.0.0/16]}}, topology: {class: %s, version: v1.33.0}}
`, classNamespace, stack.InMemoryClass), "apply", "--dry-run=server", "-o", "yaml", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(ContainSubstring("clusterclass-name.fleet.addons.cluster.x-k8s.io: " + stack.InMemoryClass))
			g.Expect(out).To(ContainSubstring("clusterclass-namespace.fleet.addons.cluster.x-k8s.io: " + classNamespace))
			g.Expect(out).NotTo(ContainSubstring("fleet.addons.cluster.x-k8s.io/owned-by"), "the webhook is up")
		}).Should(Succeed())
	})
	t.Run("the team's bundle reaches the team's cluster only", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			g.Expect(deployments(g, types.NamespacedName{Namespace: "team", Name: "one"})).To(ContainElement("team/beside-cluster"))
		}).Should(Succeed())
		for _, key := range []types.NamespacedName{{Namespace: classNamespace, Name: "one"}, {Namespace: "team", Name: "two"}} {
			g.Expect(deployments(g, key)).NotTo(ContainElement("team/beside-cluster"))
		}
	})
	t.Run("a value renders to the cluster's own CIDR", func(t *testing.T) {
		g := NewWithT(t)
		for key, cidr := range map[types.NamespacedName]string{
			{Namespace: "team", Name: "one"}: "10.2.0.0/16", {Namespace: "other", Name: "three"}: "10.4.0.0/16",
		} {
			g.Eventually(func(g Gomega) {
				var secret corev1.Secret
				g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: fleetNamespace(g, key), Name: "values"}, &secret)).To(Succeed())
				var values map[string]any
				g.Expect(yaml.Unmarshal(secret.Data["values"], &values)).To(Succeed())
				g.Expect(fmt.Sprint(values["cidrs"])).To(ContainSubstring(cidr))
			}).Should(Succeed())
		}
	})
	t.Run("a change of the control plane reaches the template values", testControlPlaneChange)
	t.Run("adopted from CAAPF: nothing is deployed again", testAdoption)
	t.Run("rebased: the bundles of the old class go, those of the new one come", testRebase)
	t.Run("deselected: the bundles of the class go, siblings keep theirs", testLeaving)
	t.Run("deleted: nothing is left", testDeletion)
	t.Run("no request was refused", testAudit)
}

// testAgentBundle looks at Fleet's bundle for its agent on classes/one: it is targeted
// at "one" by name, and through an open mapping it would be targeted at team/one too.
func testAgentBundle(t *testing.T) {
	g := NewWithT(t)
	waitImported(t, g, types.NamespacedName{Namespace: classNamespace, Name: "one"})
	targets := func(g Gomega) int {
		var bundle fleetv1.Bundle
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: classNamespace, Name: "fleet-agent-one"}, &bundle)).To(Succeed())
		return bundle.Status.Summary.DesiredReady
	}
	g.Eventually(func(g Gomega) { g.Expect(targets(g)).To(BeNumerically(">=", 1)) }).Should(Succeed())
	// Fleet looks at it again, now that everything is there.
	_, err := env.Kubectl(ctx, "-n", classNamespace, "annotate", "bundles.fleet.cattle.io", "fleet-agent-one", "look=again")
	g.Expect(err).NotTo(HaveOccurred())
	g.Consistently(targets).WithTimeout(3 * time.Second).Should(Equal(1))
}

func testControlPlaneChange(t *testing.T) {
	g := NewWithT(t)
	cluster := getCluster(g, types.NamespacedName{Namespace: "other", Name: "three"})
	_, err := env.Kubectl(ctx, "-n", "other", "annotate", "kubeadmcontrolplane", cluster.Spec.ControlPlaneRef.Name, "note=changed")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		var imported fleetv1.Cluster
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: "other", Name: "three"}, &imported)).To(Succeed())
		g.Expect(imported.Spec.TemplateValues.Data).To(HaveKeyWithValue("ControlPlane",
			HaveKeyWithValue("metadata", HaveKeyWithValue("annotations", HaveKeyWithValue("note", "changed")))))
	}).WithTimeout(soon).Should(Succeed())
}

// testRebase moves the only user of a class in a namespace to a class elsewhere, and
// back. Bundles beside the class it leaves go, also those that match any cluster.
func testRebase(t *testing.T) {
	g := NewWithT(t)
	three := types.NamespacedName{Namespace: "other", Name: "three"}
	siblings := deploymentUIDs(g, types.NamespacedName{Namespace: "team", Name: "one"})
	for _, step := range []struct {
		from, to string
		want     []string
	}{
		{classNamespace, nextClassNamespace, []string{"next-classes/next", "next-classes/any"}},
		{nextClassNamespace, classNamespace, []string{"classes/beside-class", "classes/values", "classes/from-helmop"}},
	} {
		begin := time.Now()
		_, err := env.Kubectl(ctx, "-n", "other", "patch", "clusters.cluster.x-k8s.io", "three", "--type=merge",
			"-p", `{"spec":{"topology":{"classRef":{"namespace":"`+step.to+`"}}}}`)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) {
			g.Expect(deployments(g, three)).To(ConsistOf(step.want))
		}).WithTimeout(soon).Should(Succeed())
		t.Logf("from %s to %s: the bundles were exchanged after %s", step.from, step.to, time.Since(begin).Round(100*time.Millisecond))
		g.Eventually(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, types.NamespacedName{Namespace: step.from, Name: "other"}, &fleetv1.BundleNamespaceMapping{}))
		}).Should(BeTrue(), "the mapping from the old class's namespace should be gone")
	}
	g.Expect(deploymentUIDs(g, types.NamespacedName{Namespace: "team", Name: "one"})).To(Equal(siblings))
}

// testLeaving deselects the last user of a class in a namespace.
func testLeaving(t *testing.T) {
	g := NewWithT(t)
	one := types.NamespacedName{Namespace: "team", Name: "one"}
	three := types.NamespacedName{Namespace: "other", Name: "three"}
	siblings := deploymentUIDs(g, one)
	before := fleetNamespace(g, three)

	begin := time.Now()
	const config = `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {cluster: {onDeselect: Delete, namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [other]}]}}}
`
	_, err := env.KubectlInput(ctx, config, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(deploymentsIn(g, before)).To(BeEmpty())
	}).WithTimeout(soon).Should(Succeed())
	t.Logf("the bundles were gone after %s", time.Since(begin).Round(100*time.Millisecond))
	g.Expect(deploymentUIDs(g, one)).To(Equal(siblings))
	g.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(ctx, types.NamespacedName{Namespace: classNamespace, Name: "other"}, &fleetv1.BundleNamespaceMapping{}))
	}).Should(BeTrue(), "the mapping should be gone")
}

func testDeletion(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	_, err := env.Kubectl(ctx, "delete", "clusters.cluster.x-k8s.io", "--all", "-n", "team", "--timeout=120s")
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("kubectl delete returned after %s", time.Since(begin).Round(100*time.Millisecond))
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "clusters.fleet.cattle.io,clustergroups.fleet.cattle.io", "-n", "team", "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(BeEmpty())
		out, err = env.Kubectl(ctx, "get", "bundlenamespacemappings", "-n", classNamespace, "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(BeEmpty())
	}).Should(Succeed())
}

func testAudit(t *testing.T) {
	g := NewWithT(t)
	for _, name := range []string{"muster-webhook", "muster-syncer"} {
		all, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", name)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).NotTo(BeEmpty())
		refused, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", name),
			Where: func(e stack.AuditEvent) bool { return e.Code == http.StatusForbidden }})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(refused).To(BeEmpty())
	}
}

// bundles creates a Bundle of one ConfigMap with this target.
func bundles(g Gomega, namespace, name, target string) {
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: %s, name: %s}
spec:
  defaultNamespace: default
  resources:
  - name: hello.yaml
    content: |
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: %s}
  targets:
  - %s
`, namespace, name, name, target))).To(Succeed())
}

// helmOp creates a HelmOp of a chart that a server of the test's own serves.
func helmOp(t *testing.T, g Gomega, namespace, name, group string) {
	t.Helper()
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: HelmOp
metadata: {namespace: %s, name: %s}
spec:
  defaultNamespace: default
  helm: {chart: %q}
  targets:
  - clusterGroup: %s
`, namespace, name, serveChart(t, g), group))).To(Succeed())
}

func serveChart(t *testing.T, g Gomega) string {
	t.Helper()
	var archive bytes.Buffer
	zipped := gzip.NewWriter(&archive)
	tarred := tar.NewWriter(zipped)
	content := []byte("apiVersion: v2\nname: hello\nversion: 0.1.0\n")
	g.Expect(tarred.WriteHeader(&tar.Header{Name: "hello/Chart.yaml", Mode: 0o644, Size: int64(len(content))})).To(Succeed())
	_, err := tarred.Write(content)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(tarred.Close()).To(Succeed())
	g.Expect(zipped.Close()).To(Succeed())

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(archive.Bytes())
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String() + "/hello-0.1.0.tgz"
}

// waitImported waits for a Cluster's import and returns when it happened.
func waitImported(t *testing.T, g Gomega, key types.NamespacedName) time.Time {
	t.Helper()
	g.Expect(env.WaitForControlPlane(ctx, key.Namespace, key.Name)).To(Succeed())
	var at time.Time
	g.Eventually(func(g Gomega) {
		condition := conditions.Get(getCluster(g, key), "FleetImported")
		g.Expect(condition).NotTo(BeNil())
		g.Expect(string(condition.Status)).To(Equal("True"), condition.Message)
		at = condition.LastTransitionTime.Time
	}).WithTimeout(soon).Should(Succeed())
	return at.Add(time.Second) // Conditions have whole seconds.
}

func getCluster(g Gomega, key types.NamespacedName) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, key, cluster)).To(Succeed())
	return cluster
}

// fleetNamespace returns the namespace in which Fleet keeps a cluster's BundleDeployments.
func fleetNamespace(g Gomega, key types.NamespacedName) string {
	var cluster fleetv1.Cluster
	g.Expect(admin.Get(ctx, key, &cluster)).To(Succeed())
	g.Expect(cluster.Status.Namespace).NotTo(BeEmpty())
	return cluster.Status.Namespace
}

// deployments returns the bundles that are deployed to a cluster, as namespace/name.
func deployments(g Gomega, key types.NamespacedName) []string {
	return deploymentsIn(g, fleetNamespace(g, key))
}

func deploymentsIn(g Gomega, namespace string) []string {
	var names []string
	for name := range list(g, namespace) {
		names = append(names, name)
	}
	return names
}

func deploymentUIDs(g Gomega, key types.NamespacedName) map[string]types.UID {
	return list(g, fleetNamespace(g, key))
}

func list(g Gomega, namespace string) map[string]types.UID {
	var all fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &all, client.InNamespace(namespace))).To(Succeed())
	result := map[string]types.UID{}
	for _, deployment := range all.Items {
		if own := deployment.Labels[fleetv1.BundleLabel] == "fleet-agent-"+deployment.Labels[fleetv1.ClusterLabel] &&
			deployment.Labels[fleetv1.BundleNamespaceLabel] == deployment.Labels[fleetv1.ClusterNamespaceLabel]; !own {
			result[deployment.Labels[fleetv1.BundleNamespaceLabel]+"/"+deployment.Labels[fleetv1.BundleLabel]] = deployment.UID
		}
	}
	return result
}
