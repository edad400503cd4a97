package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/process"
)

// The tests below repeat three stories (`make test-story-faults`). Each fault happens once, and the result is the
// same as without faults.

// hubServer is the management cluster's API server.
const hubServer = "kube-apiserver"

// killed kills a process with SIGKILL, because on SIGTERM an API server first waits for open requests. It restarts
// the process as a kubelet would, and waits until it is ready. It also restarts processes that ended with it: a
// controller may exit without its API server.
func killed(t *testing.T, g Gomega, name string) {
	t.Helper()
	begin := time.Now()
	g.Expect(env.Kill(ctx, name)).To(Succeed())
	g.Expect(env.Start(ctx, name)).To(Succeed())
	g.Eventually(startEnded).WithTimeout(soon).Should(Succeed())
	t.Logf("%s was killed, and away for %s", name, time.Since(begin).Round(100*time.Millisecond))
}

// startEnded starts the processes that have ended, except those of Pods, which their node restarts.
func startEnded() error {
	for _, p := range env.Processes() {
		const inPod = 3 // NAMESPACE.CLUSTER.NODE.NAMESPACE.POD.CONTAINER, or of the management cluster's node
		if p.Running || strings.Count(p.Name, ".") >= inPod {
			continue
		}
		if err := env.Start(ctx, p.Name); err != nil {
			return err
		}
	}
	return nil
}

// agentKilled kills the agent of a hosted cluster, and waits until its node runs another.
func (h hosted) agentKilled(t *testing.T, g Gomega) {
	t.Helper()
	agentKilled(t, g, h.namespace+"."+h.name+".")
}

// agentKilled does the same for the cluster whose process names have this prefix.
func agentKilled(t *testing.T, g Gomega, prefix string) {
	t.Helper()
	var killed process.Status
	g.Eventually(func(g Gomega) { killed = agentOtherThan(g, prefix, 0) }).WithTimeout(soon).Should(Succeed())
	g.Expect(env.Kill(ctx, killed.Name)).To(Succeed())
	g.Eventually(func(g Gomega) { agentOtherThan(g, prefix, killed.PID) }).WithTimeout(soon).Should(Succeed())
	t.Logf("the agent is killed: %s", killed.Name)
}

// agentOtherThan returns the running process of the cluster's agent whose PID is not pid.
func agentOtherThan(g Gomega, prefix string, pid int) process.Status {
	processes := env.Processes()
	at := slices.IndexFunc(processes, func(p process.Status) bool {
		return p.Running && p.PID != pid && strings.HasPrefix(p.Name, prefix) && strings.HasSuffix(p.Name, ".fleet-agent")
	})
	g.Expect(at).NotTo(Equal(-1), "no other agent runs on %s", prefix)
	return processes[at]
}

func (h hosted) server() string { return h.namespace + "." + h.name + ".kube-apiserver" }

// isImportedOnce expects one Fleet Cluster for the Cluster, with its group and mapping.
func isImportedOnce(g Gomega, key types.NamespacedName, group, classNamespace string) {
	var all fleetv1.ClusterList
	g.Expect(admin.List(ctx, &all, client.InNamespace(key.Namespace))).To(Succeed())
	g.Expect(all.Items).To(HaveLen(1))
	g.Expect(all.Items[0].OwnerReferences).To(HaveLen(1))
	g.Expect(all.Items[0].OwnerReferences[0].UID).To(Equal(getCluster(g, key).UID))
	g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: group}, &fleetv1.ClusterGroup{})).To(Succeed())
	g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: classNamespace, Name: key.Namespace}, &fleetv1.BundleNamespaceMapping{})).To(Succeed())
}

// Story 2: from Git. Each push comes while a process is down. This test runs first, because its class comes from
// Git, too.
func TestFaultsFromGit(t *testing.T) {
	g := NewWithT(t)
	story := newGitStory(t)
	story.begin(g)
	killed(t, g, syncerProcess)
	g.Eventually(story.serves("git")).WithTimeout(4 * time.Minute).Should(Succeed())

	for _, fault := range []struct {
		message string
		strike  func(t *testing.T, g Gomega)
	}{
		{"server", func(t *testing.T, g Gomega) { killed(t, g, hubServer) }},
		{"cluster", func(t *testing.T, g Gomega) { killed(t, g, story.prod.server()) }},
		{"agent", story.prod.agentKilled},
	} {
		begin := time.Now()
		story.push(g, fault.message)
		fault.strike(t, g)
		g.Eventually(story.serves(fault.message)).WithTimeout(4 * time.Minute).Should(Succeed())
		t.Logf("a push was followed %s later", time.Since(begin).Round(100*time.Millisecond))
	}
	g.Eventually(story.prod.available).WithTimeout(4*time.Minute).Should(BeTrue(), story.prod.status)
	isImportedOnce(g, story.prod.key(), "standard.classes", classNamespace)
	t.Run("removed from Git: gone everywhere", story.remove)
}

// Story 4: Ready from a template.
func TestFaultsReadyFromATemplate(t *testing.T) {
	g := NewWithT(t)
	prod := hosted{"team", "prod"}
	blocks := fromTemplate(t, g)
	begin := time.Now()
	for _, block := range blocks {
		kubectlApply(g, block)
	}

	killed(t, g, syncerProcess)
	g.Expect(env.WaitForControlPlane(ctx, "team", "prod")).To(Succeed())
	killed(t, g, hubServer)
	g.Eventually(func(g Gomega) { prod.scheduled(g, stack.DefaultAgentNamespace, "app=fleet-agent") }).WithTimeout(2 * soon).Should(Succeed())
	killed(t, g, prod.server())
	prod.agentKilled(t, g)

	g.Eventually(prod.available).WithTimeout(4*time.Minute).Should(BeTrue(), prod.status)
	t.Logf("Available %s after kubectl apply", time.Since(begin).Round(100*time.Millisecond))
	g.Expect(deployments(g, prod.key())).To(ConsistOf("classes/cni", "classes/cloud-provider"))
	g.Expect(prod.taints(g)).To(BeEmpty())
	isImportedOnce(g, prod.key(), "standard.classes", classNamespace)
	kubectl(g, "-n", "team", "delete", "clusters.cluster.x-k8s.io", "prod", "--timeout=60s")
}

// Story 5: behind NAT. The cluster is registered once, whichever process fails.
func TestFaultsBehindNAT(t *testing.T) {
	g := NewWithT(t)
	const class = stack.InMemoryClass + "." + natClasses
	behindNAT(t, g)

	killed(t, g, syncerProcess)
	killed(t, g, "muster-registrar")
	_, token := testRegistered(t)
	killed(t, g, hubServer)
	t.Run("what is issued lets its agent register and deploy", testAgentInitiated)
	for _, process := range []string{"downstream-kube-apiserver", "fleet-agent", hubServer, syncerProcess} {
		name := "without-" + process
		g.Expect(env.Apply(ctx, helloBundle(name))).To(Succeed())
		if process == "fleet-agent" {
			agentKilled(t, g, "downstream-")
		} else {
			killed(t, g, process)
		}
		eventuallyPods(g, name, "10.77.0.0/16")
	}

	g.Expect(manifestToken(g, "")).To(Equal(token), "registered once more")
	g.Expect(registrations(g)).To(HaveLen(1))
	isImportedOnce(g, nat, class, natClasses)
}
