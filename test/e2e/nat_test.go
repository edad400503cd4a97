package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	natClasses = "nat-classes"
	natTeam    = "nat-team"
)

var nat = types.NamespacedName{Namespace: natTeam, Name: "edge"}

// The story of clusters behind NAT: the management side cannot reach the cluster, a user applies the issued
// manifest there, and the agent registers itself and gets its bundles.
func TestBehindNAT(t *testing.T) {
	g := NewWithT(t)
	cluster := behindNAT(t, g)

	var clientID, first string
	if !t.Run("it is registered before its control plane is initialized", func(t *testing.T) { clientID, first = testRegistered(t) }) {
		return
	}
	if !t.Run("with the issued manifest its agent registers and deploys", testAgentInitiated) {
		return
	}
	t.Run("its agent stays when agentNamespace changes", testAgentNamespace)
	t.Run("the credential can do what Fleet's roles say", func(t *testing.T) { testCredential(t, first) })
	t.Run("no management client has connected to the cluster", testNobodyConnected)
	t.Run("rotated: only the new credential works", func(t *testing.T) { first = testRotation(t, first) })
	t.Run("to the manager and back: no agent is cut off", func(t *testing.T) { testTurning(t, first, clientID) })
	t.Run("recreated under its name: no old credential works", func(t *testing.T) { testAnew(t, cluster, first, clientID) })
	t.Run("nothing was refused", testRegistrarAudit)
	t.Run("a bootstrap that starts before the manifest exists is retried", testManifestIsLate)
}

// behindNAT applies a Cluster whose workload API the management side cannot reach, and everything that it needs.
func behindNAT(t *testing.T, g Gomega) stack.TopologyCluster {
	t.Helper()
	g.Expect(env.StartComponent(ctx, "registrar")).To(Succeed())
	namespaces(g, natTeam)
	inMemoryClass(g, natClasses, handOver)
	g.Expect(env.Apply(ctx, helloBundle("edge-hello"))).To(Succeed())
	g.Expect(env.Apply(ctx, unreachable(nat))).To(Succeed())
	t.Cleanup(func() {
		kubectl(NewWithT(t), "delete", "clusters.cluster.x-k8s.io", "-n", natTeam, "--all", "--wait=false")
	})
	cluster := stack.TopologyCluster{
		Namespace: nat.Namespace, Name: nat.Name, ClassNamespace: natClasses, PodCIDR: "10.77.0.0/16",
		Labels: map[string]string{"site": "edge"}, Annotations: map[string]string{stamp.RegistrationAnnotation: "agent"},
	}
	g.Expect(env.Apply(ctx, cluster.YAML())).To(Succeed())
	return cluster
}

// unreachable returns the kubeconfig Secret of a Cluster with an address where no server listens. The provider of
// the control plane leaves a Secret alone that another client made.
func unreachable(key types.NamespacedName) string {
	kubeconfig := `{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}],
contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: none}}]}`
	return fixture.KubeconfigSecret(key.Namespace, key.Name, []byte(kubeconfig))
}

// helloBundle returns a Bundle for the clusters of the class.
func helloBundle(name string) string {
	return fixture.DataBundle(natClasses, name, "[{clusterGroup: "+stack.InMemoryClass+"."+natClasses+"}]", fixture.PodCIDRs)
}

func testRegistered(t *testing.T) (clientID, token string) {
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		fleet := fleetCluster(g, nat)
		g.Expect(fleet.Spec.KubeConfigSecret).To(BeEmpty())
		clientID = fleet.Spec.ClientID
		g.Expect(len(clientID)).To(BeNumerically(">=", 26))
		g.Expect(fleet.Labels).To(HaveKeyWithValue("site", "edge"))
		g.Expect(fleet.Labels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, natClasses))
	}).WithTimeout(soon).Should(Succeed())
	token = manifestToken(g, "")
	cluster := getCluster(g, nat)
	g.Expect(ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)).To(BeFalse())
	g.Expect(conditions.GetReason(cluster, "FleetImported")).To(Equal("WaitingForAgent"))
	return clientID, token
}

// manifestToken waits until the Secret with the manifest holds a credential other than this one, and returns it.
func manifestToken(g Gomega, other string) (token string) {
	g.Eventually(func(g Gomega) {
		cluster := getCluster(g, nat)
		g.Expect(conditions.IsTrue(cluster, addonsv1.FleetAgentManifestReadyCondition)).To(BeTrue(), conditions.GetMessage(cluster, addonsv1.FleetAgentManifestReadyCondition))
		var secret corev1.Secret
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: nat.Namespace, Name: "edge-fleet-agent"}, &secret)).To(Succeed())
		g.Expect(secret.OwnerReferences).To(HaveLen(1))
		g.Expect(secret.OwnerReferences[0].UID).To(Equal(cluster.UID))
		token = string(secret.Data["token"])
		g.Expect(token).NotTo(Or(BeEmpty(), Equal(other)))
	}).WithTimeout(soon).Should(Succeed())
	return token
}

// manifest returns the output of `kubectl muster agent-manifest`.
func manifest(g Gomega) string {
	cmd := exec.Command(env.Program("kubectl-muster"), "agent-manifest", "--kubeconfig="+env.Kubeconfig, nat.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	g.Expect(err).NotTo(HaveOccurred())
	return string(out)
}

func testAgentInitiated(t *testing.T) {
	g := NewWithT(t)
	_, err := env.StartDownstream(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	bootstrap(t, g)
	begin := time.Now()
	g.Expect(env.StartAgent(ctx, stack.DefaultAgentNamespace)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(conditions.GetReason(getCluster(g, nat), "FleetImported")).To(Equal("Imported"))
	}).WithTimeout(soon).Should(Succeed())
	t.Logf("the agent had checked in after %s", time.Since(begin).Round(100*time.Millisecond))
	eventuallyPods(g, "edge-hello", "10.77.0.0/16")
	var all fleetv1.ClusterList
	g.Expect(admin.List(ctx, &all, client.InNamespace(natTeam))).To(Succeed())
	g.Expect(all.Items).To(HaveLen(1), "Fleet has made a Cluster of its own")
}

// lands checks that a new bundle reaches the cluster.
func lands(g Gomega, name string) {
	g.Expect(env.Apply(ctx, helloBundle(name))).To(Succeed())
	eventuallyPods(g, name, "10.77.0.0/16")
}

func eventuallyPods(g Gomega, name, want string) {
	g.Eventually(func(g Gomega) {
		out, err := env.DownstreamKubectl(ctx, "-n", "default", "get", "configmap", name, "-o", "jsonpath={.data.pods}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(Equal(want))
	}).WithTimeout(soon).Should(Succeed())
}

// as runs kubectl on the management side with an issued credential.
func as(g Gomega, token string, args ...string) (string, error) {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	args = append([]string{"--kubeconfig=/dev/null", "--server=" + config.Host, "--insecure-skip-tls-verify", "--token=" + token}, args...)
	out, err := exec.Command(env.Program("kubectl"), args...).CombinedOutput()
	return string(out), err
}

// testCredential lists what the issued credential may do. Fleet's own roles give the same to any agent, and
// docs/guides/nat.md describes it.
func testCredential(t *testing.T, token string) {
	g := NewWithT(t)
	its := fleetNamespace(g, nat)
	for allowed, all := range map[bool][]string{
		true: {
			"get bundledeployments.fleet.cattle.io -n " + its,
			"list bundledeployments.fleet.cattle.io -n " + its,
			"watch bundledeployments.fleet.cattle.io -n " + its,
			"update bundledeployments.fleet.cattle.io --subresource=status -n " + its,
			"patch bundledeployments.fleet.cattle.io --subresource=status -n " + its,
			"get secrets -n " + its,
			"get configmaps -n " + its,
			"get contents.fleet.cattle.io",
			"patch clusters.fleet.cattle.io/edge --subresource=status -n " + natTeam,
		},
		false: {
			"update bundledeployments.fleet.cattle.io -n " + its,
			"list secrets -n " + its,
			"get secrets -n " + natTeam,
			"get secrets -n cattle-fleet-clusters-system",
			"list contents.fleet.cattle.io",
			"get clusters.fleet.cattle.io -n " + natTeam,
			"patch clusters.fleet.cattle.io/another --subresource=status -n " + natTeam,
			"create clusterregistrations.fleet.cattle.io -n " + natTeam,
			"get bundles.fleet.cattle.io -n " + natClasses,
			"get bundledeployments.fleet.cattle.io -n " + natTeam,
			"get clusters.cluster.x-k8s.io -n " + natTeam,
		},
	} {
		for _, what := range all {
			out, _ := as(g, token, append([]string{"auth", "can-i"}, strings.Fields(what)...)...)
			g.Expect(strings.Contains("\n"+out, "\nyes")).To(Equal(allowed), "%s: %s", what, out)
		}
	}
	// In addition to the rules: one real request that is allowed, and one that is not.
	out, err := as(g, token, "get", "bundledeployments.fleet.cattle.io", "-n", its)
	g.Expect(err).NotTo(HaveOccurred(), out)
	out, err = as(g, token, "get", "secrets", "edge-fleet-agent", "-n", natTeam)
	g.Expect(err).To(HaveOccurred())
	g.Expect(out).To(ContainSubstring("Forbidden"))
}

// testNobodyConnected checks which clients sent requests to the cluster's API server: only the API server itself,
// the user who applied the manifest, and the agent.
func testNobodyConnected(t *testing.T) {
	g := NewWithT(t)
	events, err := env.DownstreamAuditLog(stack.AuditFilter{Where: func(e stack.AuditEvent) bool {
		isPerson := e.User == "admin" && !strings.Contains(e.UserAgent, "fleet") && !strings.Contains(e.UserAgent, "muster") && !strings.Contains(e.UserAgent, "manager")
		isItself := strings.HasPrefix(e.User, "system:") && !strings.HasPrefix(e.User, "system:serviceaccount:") ||
			strings.HasPrefix(e.User, "system:serviceaccount:kube-system:")
		isAgent := e.User == stack.ServiceAccount(stack.DefaultAgentNamespace, "fleet-agent")
		return !isPerson && !isItself && !isAgent
	}})
	g.Expect(err).NotTo(HaveOccurred())
	var registered []string
	for _, event := range events {
		registered = append(registered, event.User+" "+event.UserAgent)
	}
	slices.Sort(registered)
	g.Expect(slices.Compact(registered)).To(BeEmpty())
}

func refused(g Gomega, token string) {
	g.Eventually(func(g Gomega) {
		out, err := as(g, token, "get", "--raw", "/api")
		g.Expect(err).To(HaveOccurred())
		g.Expect(out).To(ContainSubstring("Unauthorized"))
	}).WithTimeout(soon).Should(Succeed())
}

func annotate(g Gomega, value string) {
	kubectl(g, "-n", nat.Namespace, "annotate", "--overwrite", "clusters.cluster.x-k8s.io", nat.Name, value)
}

// redeploys checks that a new bundle reaches the cluster, which needs an agent with a valid credential.
func redeploys(t *testing.T, g Gomega, name string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.yaml")
	g.Expect(os.WriteFile(file, []byte(manifest(g)), 0o600)).To(Succeed())
	_, err := env.DownstreamKubectl(ctx, "apply", "-f", file)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = env.DownstreamKubectl(ctx, "-n", stack.DefaultAgentNamespace, "delete", "pods", "-l", "app=fleet-agent")
	g.Expect(err).NotTo(HaveOccurred())
	lands(g, name)
}

func testRotation(t *testing.T, old string) string {
	g := NewWithT(t)
	annotate(g, stamp.RotateAnnotation+"=1")
	fresh := manifestToken(g, old)
	refused(g, old)
	redeploys(t, g, "edge-rotated")
	g.Expect(registrations(g)).To(HaveLen(1))
	return fresh
}

func registrations(g Gomega) []fleetv1.ClusterRegistration {
	var all fleetv1.ClusterRegistrationList
	g.Expect(admin.List(ctx, &all, client.InNamespace(natTeam))).To(Succeed())
	return all.Items
}

// testTurning tells the management side to install the agent, which it cannot. The agent that has checked in
// continues, and its manifest stays. After the change back, nothing is different for it.
func testTurning(t *testing.T, token, clientID string) {
	g := NewWithT(t)
	registered := registrations(g)
	g.Expect(registered).To(HaveLen(1))
	turn := func(by, kubeconfig string) {
		annotate(g, stamp.RegistrationAnnotation+"="+by)
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, nat).Spec.KubeConfigSecret).To(Equal(kubeconfig))
		}).WithTimeout(soon).Should(Succeed())
		g.Expect(fleetCluster(g, nat).Spec.ClientID).To(Equal(clientID))
	}
	// Cluster API cannot reach this control plane either, and would never report it as initialized.
	g.Expect(fixture.Initialize(ctx, admin, getCluster(g, nat))).To(Succeed())
	turn("manager", "edge-kubeconfig")
	g.Eventually(func() string { return env.LogTail("fleet-agentmanagement") }).WithTimeout(soon).Should(ContainSubstring("127.0.0.1:1"), "Fleet has not tried")
	lands(g, "edge-meanwhile")
	g.Expect(manifestToken(g, "")).To(Equal(token))

	turn("agent", "")
	g.Expect(manifestToken(g, "")).To(Equal(token))
	lands(g, "edge-turned")
	g.Expect(registrations(g)).To(HaveLen(1))
	g.Expect(registrations(g)[0].UID).To(Equal(registered[0].UID))
}

func testAnew(t *testing.T, again stack.TopologyCluster, old, clientID string) {
	g := NewWithT(t)
	before := getCluster(g, nat)
	kubectl(g, "delete", "clusters.cluster.x-k8s.io", "-n", nat.Namespace, nat.Name, "--timeout=120s")
	refused(g, old)
	g.Expect(env.Apply(ctx, unreachable(nat))).To(Succeed())
	g.Expect(env.Apply(ctx, again.YAML())).To(Succeed())
	g.Expect(getCluster(g, nat).UID).NotTo(Equal(before.UID))
	manifestToken(g, old)
	g.Expect(fleetCluster(g, nat).Spec.ClientID).NotTo(Equal(clientID))
	g.Expect(conditions.GetReason(getCluster(g, nat), "FleetImported")).To(Equal("WaitingForAgent"))
}

func testRegistrarAudit(t *testing.T) {
	g := NewWithT(t)
	g.Expect(fixture.NothingRefused(env, "muster-system", []string{"muster-registrar"}, nil)).To(Succeed())
	elsewhere, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-registrar"), Where: func(e stack.AuditEvent) bool {
		return e.Resource == "secrets" && e.Namespace != natTeam && e.Namespace != "cattle-fleet-clusters-system"
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(elsewhere).To(BeEmpty())
}
