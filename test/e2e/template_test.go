package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// waiting lists the taints that stay on a worker while no CNI or cloud provider runs there. Cluster API removes a
// third one, node.cluster.x-k8s.io/uninitialized, from every node that it knows.
var waiting = []string{"node.kubernetes.io/not-ready", "node.cloudprovider.kubernetes.io/uninitialized"}

// The guide "Clusters that become ready on their own", with its objects unchanged: after one apply, the Cluster
// becomes Available when the CNI, and everything else that Fleet deploys to it, is ready. Cluster API's own
// controllers make the Cluster, and Kubernetes' own controllers make and schedule the Pods and remove the taints.
// Only the kubelet and the machines are played.
func TestReadyFromATemplate(t *testing.T) {
	g := NewWithT(t)
	blocks := fromTemplate(t, g)
	config, cni, cluster := blocks[0], blocks[1], blocks[2]
	kubectlApply(g, cni)

	bare, prod := hosted{"team", "bare"}, hosted{"team", "prod"}
	t.Run("without tolerations the agent does not run, and the Cluster's conditions say so", func(t *testing.T) {
		kubectlApply(NewWithT(t), strings.Replace(config, "  cluster:\n", "  cluster:\n    agentTolerations: []\n", 1))
		kubectlApply(NewWithT(t), strings.Replace(cluster, "name: prod", "name: bare", 1))
		testWithoutTolerations(t, bare)
	})
	begin := time.Now()
	kubectlApply(g, config)
	kubectlApply(g, cluster)
	t.Run("with the guide's objects it becomes Available", func(t *testing.T) { testBecomesAvailable(t, prod, begin) })
	t.Run("corrected tolerations reach a cluster whose agent never ran", func(t *testing.T) {
		NewWithT(t).Eventually(bare.available).WithTimeout(2*time.Minute).Should(BeTrue(), bare.status)
		t.Logf("%s after the FleetAddonConfig was corrected", time.Since(begin).Round(100*time.Millisecond))
	})
	t.Run("agents on one node do not clash", func(t *testing.T) { testAgentsOnOneNode(t, prod) })
	t.Run("deleted: nothing is left", func(t *testing.T) {
		g := NewWithT(t)
		kubectl(g, "-n", "team", "delete", "clusters.cluster.x-k8s.io", "bare", "prod", "--timeout=60s")
		g.Eventually(func(g Gomega) {
			for _, p := range env.Processes() {
				g.Expect(p.Name).NotTo(HavePrefix("team."))
			}
		}).Should(Succeed())
	})
}

// fromTemplate prepares what the guide expects, and returns the guide's objects: the FleetAddonConfig, the CNI's
// Bundle, and the Cluster prod.
func fromTemplate(t *testing.T, g Gomega) []string {
	t.Helper()
	t.Cleanup(func() { leaveNoTemplate(t) })
	g.Expect(env.StartHostProvider(ctx)).To(Succeed())
	namespaces(g, classNamespace, "team")
	hostClass(g)
	g.Expect(env.Apply(ctx, cloudProvider)).To(Succeed())
	blocks, err := fixture.Guide("cni.md", 3)
	g.Expect(err).NotTo(HaveOccurred())
	return blocks
}

func testWithoutTolerations(t *testing.T, bare hosted) {
	g := NewWithT(t)
	waitImported(t, g, bare.key())
	g.Eventually(func(g Gomega) { g.Expect(bare.taints(g)).To(ContainElements(waiting)) }).WithTimeout(time.Minute).Should(Succeed())
	bare.apply(g, ordinary)
	unschedulable := And(HaveField("Status", corev1.ConditionFalse), HaveField("Message", ContainSubstring("untolerated taint")))
	g.Eventually(func(g Gomega) {
		g.Expect(bare.scheduled(g, stack.DefaultAgentNamespace, "app=fleet-agent")).To(unschedulable)
		g.Expect(bare.scheduled(g, "default", "app=ordinary")).To(unschedulable)
	}).Should(Succeed())
	stands := func(g Gomega) {
		live := getCluster(g, bare.key())
		ready, available := conditions.Get(live, "FleetBundlesReady"), conditions.Get(live, clusterv1.AvailableCondition)
		g.Expect(ready).To(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", "AgentNotSeen")))
		g.Expect(available).NotTo(HaveField("Status", metav1.ConditionTrue))
		g.Expect(available.Message).To(ContainSubstring("FleetBundlesReady: " + ready.Message))
		g.Expect(conditions.IsTrue(live, "FleetImported")).To(BeTrue())
	}
	g.Eventually(stands).Should(Succeed())
	// It stays so, because only the agent could make the node lose its taints.
	g.Consistently(func(g Gomega) {
		stands(g)
		g.Expect(bare.scheduled(g, stack.DefaultAgentNamespace, "app=fleet-agent")).To(unschedulable)
		g.Expect(bare.taints(g)).To(ContainElements(waiting))
	}).WithTimeout(5 * time.Second).Should(Succeed())
}

func testBecomesAvailable(t *testing.T, prod hosted, begin time.Time) {
	g := NewWithT(t)
	// An ordinary Pod exists before the first node.
	g.Eventually(func(g Gomega) { prod.apply(g, ordinary) }).WithTimeout(time.Minute).Should(Succeed())
	g.Eventually(prod.available).WithTimeout(2*time.Minute).Should(BeTrue(), prod.status)
	t.Logf("%s after kubectl apply", time.Since(begin).Round(100*time.Millisecond))

	live := getCluster(g, prod.key())
	g.Expect(conditions.IsTrue(live, "FleetImported")).To(BeTrue())
	g.Expect(conditions.IsTrue(live, "FleetBundlesReady")).To(BeTrue())
	g.Expect(conditions.IsTrue(live, clusterv1.ClusterWorkersAvailableCondition)).To(BeTrue())
	g.Expect(deployments(g, prod.key())).To(ContainElements("classes/cni", "classes/cloud-provider"))

	g.Expect(prod.taints(g)).To(BeEmpty(), "the CNI, Cluster API and the cloud provider have each taken theirs")
	daemons := &appsv1.DaemonSet{}
	prod.get(g, daemons, "-n", "kube-flannel", "daemonset", "flannel")
	g.Expect(daemons.Status.NumberReady).To(BeEquivalentTo(1))
	network := &corev1.ConfigMap{}
	prod.get(g, network, "-n", "kube-flannel", "configmap", "flannel")
	g.Expect(network.Data["net-conf.json"]).To(ContainSubstring("10.244.0.0/16"), "the cluster's own Pod network")

	g.Expect(prod.scheduled(g, "default", "app=ordinary").Status).To(Equal(corev1.ConditionTrue))
}

// testAgentsOnOneNode runs an agent of another Fleet on the node of prod, with the default ports.
func testAgentsOnOneNode(t *testing.T, prod hosted) {
	g := NewWithT(t)
	var kubeconfig corev1.Secret
	g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: prod.namespace, Name: prod.name + "-kubeconfig"}, &kubeconfig)).To(Succeed())
	value, err := json.Marshal(kubeconfig.Data)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, fmt.Sprintf(otherFleet, value))).To(Succeed())
	g.Eventually(func(g Gomega) {
		other := fleetCluster(g, types.NamespacedName{Namespace: "other-fleet", Name: "node"})
		g.Expect(other.Status.Agent.LastSeen.IsZero()).To(BeFalse(), "its agent has not checked in")
	}).WithTimeout(time.Minute).Should(Succeed())

	// Ours started on a node whose ports were free. It must also start where the ports are in use.
	before := prod.agentPod(g)
	_, err = prod.kubectl("-n", stack.DefaultAgentNamespace, "delete", "pods", "-l", "app=fleet-agent")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(prod.agentPod(g)).NotTo(Equal(before))
		g.Expect(prod.log(g, stack.DefaultAgentNamespace)).To(ContainSubstring("Starting workers"))
	}).WithTimeout(time.Minute).Should(Succeed())
	g.Expect(prod.log(g, stack.DefaultAgentNamespace)).NotTo(ContainSubstring("address already in use"))
}

// leaveNoTemplate restores what later tests expect.
func leaveNoTemplate(t *testing.T) {
	g := NewWithT(t)
	withDefaults(g)
	kubectl(g, "-n", classNamespace, "delete", "bundles.fleet.cattle.io", "cni", "cloud-provider", "--ignore-not-found")
}

// ordinary is a typical Pod of a user.
const ordinary = `
apiVersion: v1
kind: Pod
metadata: {namespace: default, name: ordinary, labels: {app: ordinary}}
spec:
  containers:
  - {name: pause, image: "registry.k8s.io/pause:3.10"}
`

// cloudProvider is a Bundle with a cloud provider's controller manager, in the namespace of the class.
const cloudProvider = `
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: classes, name: cloud-provider}
spec:
  targets:
  - clusterGroup: standard.classes
  defaultNamespace: kube-system
  resources:
  - name: cloud-provider.yaml
    content: |
      apiVersion: v1
      kind: ServiceAccount
      metadata: {name: cloud-controller-manager}
      ---
      apiVersion: rbac.authorization.k8s.io/v1
      kind: ClusterRoleBinding
      metadata: {name: cloud-controller-manager}
      roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:cloud-controller-manager"}
      subjects: [{kind: ServiceAccount, name: cloud-controller-manager, namespace: kube-system}]
      ---
      apiVersion: rbac.authorization.k8s.io/v1
      kind: ClusterRole
      metadata: {name: "system:cloud-controller-manager"}
      rules:
      - {apiGroups: [""], resources: [nodes], verbs: [get, list, watch, patch, update]}
      ---
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: cloud-controller-manager}
      spec:
        selector: {matchLabels: {app: cloud-controller-manager}}
        template:
          metadata: {labels: {app: cloud-controller-manager}}
          spec:
            serviceAccountName: cloud-controller-manager
            hostNetwork: true
            tolerations:
            - {operator: Exists, effect: NoSchedule}
            containers:
            - {name: manager, image: "registry.example.com/cloud-controller-manager:v1.36.0"}
`

// otherFleet makes another Fleet manage the cluster, too.
const otherFleet = `
apiVersion: v1
kind: Namespace
metadata: {name: other-fleet}
---
apiVersion: v1
kind: Secret
metadata: {namespace: other-fleet, name: node-kubeconfig}
data: %s
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: other-fleet, name: node}
spec: {kubeConfigSecret: node-kubeconfig, hostNetwork: true, agentNamespace: other-fleet}
`
