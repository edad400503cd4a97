package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
)

// hosted is a Cluster whose control plane and nodes are processes on this host.
type hosted struct{ namespace, name string }

func (h hosted) key() types.NamespacedName {
	return types.NamespacedName{Namespace: h.namespace, Name: h.name}
}

func (h hosted) available() bool {
	live := &clusterv1.Cluster{}
	return admin.Get(ctx, h.key(), live) == nil && conditions.IsTrue(live, clusterv1.AvailableCondition)
}

// status returns the Cluster's conditions, and its nodes, Pods and events, for messages.
func (h hosted) status() string {
	out, err := env.Kubectl(ctx, "-n", h.namespace, "get", "clusters.cluster.x-k8s.io", h.name, "-o",
		`jsonpath={range .status.conditions[*]}{.type}={.status} {.message}{"\n"}{end}`)
	pods, _ := h.kubectl("get", "nodes,pods,events", "-A")
	var agents strings.Builder
	for _, its := range env.Processes() {
		if strings.HasPrefix(its.Name, h.namespace+"."+h.name+".") && strings.Contains(its.Name, "fleet-agent") {
			fmt.Fprintln(&agents, env.LogTail(its.Name))
		}
	}
	return fmt.Sprint(out, err, "\n", pods, agents.String())
}

func (h hosted) kubectl(args ...string) (string, error) {
	return env.HostedKubectl(ctx, h.namespace, h.name, args...)
}

func (h hosted) apply(g Gomega, yaml string) {
	_, err := env.HostedKubectlInput(ctx, h.namespace, h.name, yaml, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
}

// get reads an object of the cluster, or a list.
func (h hosted) get(g Gomega, into any, args ...string) {
	out, err := h.kubectl(append([]string{"get", "-o", "json"}, args...)...)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal([]byte(out), into)).To(Succeed())
}

// taints returns the taints of the only node in the cluster.
func (h hosted) taints(g Gomega) []string {
	var nodes corev1.NodeList
	h.get(g, &nodes, "nodes")
	g.Expect(nodes.Items).To(HaveLen(1))
	var keys []string
	for _, taint := range nodes.Items[0].Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}

// scheduled returns the scheduler's condition of the one Pod with this label.
func (h hosted) scheduled(g Gomega, namespace, selector string) corev1.PodCondition {
	for _, condition := range h.pod(g, namespace, selector).Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return condition
		}
	}
	return corev1.PodCondition{}
}

func (h hosted) pod(g Gomega, namespace, selector string) corev1.Pod {
	var pods corev1.PodList
	h.get(g, &pods, "-n", namespace, "pods", "-l", selector)
	g.Expect(pods.Items).To(HaveLen(1))
	return pods.Items[0]
}

// log returns the output of the agent's process in this namespace.
func (h hosted) log(g Gomega, namespace string) string {
	pod := h.pod(g, namespace, "app=fleet-agent")
	name := strings.Join([]string{h.namespace, h.name, pod.Spec.NodeName, pod.Namespace, pod.Name, "fleet-agent"}, ".")
	content, err := os.ReadFile(env.LogPath(name))
	g.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func (h hosted) agentPod(g Gomega) types.UID {
	return h.pod(g, "fleet-addon-agent", "app=fleet-agent").UID
}
