package helm

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestKilledAgent kills the agent of the only Cluster of the first stage: a change rolls out past it, names it, and reaches
// it once the agent is back.
func TestKilledAgent(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	one.label(g, "first=yes")
	one.label(g, "killed=yes")
	two.label(g, "killed=yes")
	const offlineAfter = 15 * time.Second
	g.Expect(env.Apply(ctx, simple("killed", "1.0.0", `  rollout:
    offlineAfter: 15s
    stages: [{name: first, clusterSelector: {matchLabels: {first: "yes"}}}]
`))).To(Succeed())
	for _, its := range []cluster{one, two} {
		its.says(g, "killed", "killed", "version", "1.0.0")
	}
	rolls := func(g Gomega, want string, offline int) {
		its := proxy(g, "killed")
		g.Expect(its.Status.ObservedGeneration).To(Equal(its.Generation))
		completed := meta.FindStatusCondition(its.Status.Conditions, "RolloutCompleted")
		g.Expect(completed).NotTo(BeNil())
		g.Expect(string(completed.Status) + " " + completed.Message).To(Equal(want))
		g.Expect(its.Status.Rollout.Stages[0].Offline).To(Equal(offline))
	}
	g.Eventually(func(g Gomega) { isReady(g, "killed"); rolls(g, "True ", 0) }).Should(Succeed())

	silence := func(g Gomega) time.Duration {
		fleet := &fleetv1.Cluster{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: one.namespace, Name: one.name}, fleet)).To(Succeed())
		return time.Since(fleet.Status.Agent.LastSeen.Time)
	}
	g.Eventually(silence).Should(BeNumerically("<", offlineAfter)) // A new agent checks in for the first time after 15 s.
	one.killAgent(g)
	t.Cleanup(func() { one.startAgent(NewWithT(t)) })
	begin := time.Now()
	g.Eventually(silence).Should(BeNumerically(">", offlineAfter))
	t.Logf("silent for %s after %s", offlineAfter, time.Since(begin).Round(time.Second))
	patch(g, "killed", `{"spec":{"version":"1.1.0"}}`)
	two.says(g, "killed", "killed", "version", "1.1.0")
	g.Eventually(func(g Gomega) { rolls(g, "True every other Cluster has the wanted state (1 offline: team/one)", 1) }).Should(Succeed())
	g.Expect(one.data(g, "killed", "killed-values", "version")).To(Equal("1.0.0"))
	t.Logf("rolled out past the Cluster after %s", time.Since(begin).Round(time.Second))

	one.startAgent(g)
	one.says(g, "killed", "killed", "version", "1.1.0")
	g.Eventually(func(g Gomega) { isReady(g, "killed"); rolls(g, "True ", 0) }).Should(Succeed())
	t.Logf("caught up after %s", time.Since(begin).Round(time.Second))
	deleteProxy(g, team, "killed")
}

// killAgent kills the process of Fleet's agent, and keeps it from being restarted.
func (c cluster) killAgent(g Gomega) {
	agents := c.agents()
	g.Expect(agents).NotTo(BeEmpty())
	for _, name := range agents {
		g.Expect(env.Kill(ctx, name)).To(Succeed())
	}
	c.scaleAgent(g, "0")
	g.Eventually(c.agents).Should(BeEmpty())
}

func (c cluster) startAgent(g Gomega) {
	c.scaleAgent(g, "1")
	g.Eventually(c.agents).ShouldNot(BeEmpty())
}

func (c cluster) scaleAgent(g Gomega, replicas string) {
	_, err := c.kubectl("-n", "fleet-addon-agent", "scale", "deployment", "fleet-agent", "--replicas="+replicas)
	g.Expect(err).NotTo(HaveOccurred())
}

// agents lists the processes of Fleet's agent that run.
func (c cluster) agents() (names []string) {
	for _, its := range env.Processes() {
		if its.Running && strings.HasPrefix(its.Name, c.namespace+"."+c.name+".") && strings.Contains(its.Name, ".fleet-addon-agent.fleet-agent-") {
			names = append(names, its.Name)
		}
	}
	return names
}
