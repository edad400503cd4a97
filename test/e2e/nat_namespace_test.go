package e2e

import (
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/conditions"
)

// testAgentNamespace: another spec.cluster.agentNamespace would have the agent deploy itself there,
// where it has no credential. It stays; other settings reach it.
func testAgentNamespace(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.Apply(ctx, `{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config},
spec: {cluster: {agentNamespace: elsewhere, agentEnvVars: [{name: MUSTER_TEST, value: reached}]}}}`)).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "fleetaddonconfig", "fleet-addon-config"); err != nil {
			t.Error(err)
		}
	})
	g.Eventually(func(g Gomega) {
		var fleet fleetv1.Cluster
		g.Expect(admin.Get(ctx, nat, &fleet)).To(Succeed())
		g.Expect(fleet.Spec.AgentEnvVars).To(HaveLen(1))
		g.Expect(fleet.Spec.AgentNamespace).To(Equal("fleet-addon-agent"))
		g.Expect(conditions.GetMessage(getCluster(g, nat), "FleetImported")).To(ContainSubstring(`its agent stays in namespace "fleet-addon-agent"`))
	}).WithTimeout(soon).Should(Succeed())
	// Fleet has made the agent's Bundle anew, and the agent has deployed itself from it.
	g.Eventually(func(g Gomega) {
		var bundle fleetv1.Bundle
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: natTeam, Name: "fleet-agent-" + nat.Name}, &bundle)).To(Succeed())
		g.Expect(bundle.Spec.DefaultNamespace).To(Equal("fleet-addon-agent"))
		env, err := env.DownstreamKubectl(ctx, "-n", "fleet-addon-agent", "get", "deployment", "fleet-agent", "-o", "jsonpath={..env}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(env).To(ContainSubstring("MUSTER_TEST"))
	}).WithTimeout(soon).Should(Succeed())
	g.Expect(env.Apply(ctx, helloBundle("edge-stays"))).To(Succeed())
	eventuallyPods(g, "edge-stays", "10.77.0.0/16")
	out, err := env.DownstreamKubectl(ctx, "get", "namespaces", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).NotTo(ContainSubstring("elsewhere"))
}
