package charts

import (
	"testing"

	. "github.com/onsi/gomega"
)

// TestLeaky has a chart fail with a password in what it says: Fleet says it again, and nothing of ours does.
func TestLeaky(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	g.Expect(charts.Publish("leaky", "1.0.0", map[string]string{"a.yaml": `{{ fail .Values.password }}`})).To(Succeed())
	one.label(g, "leaky=yes")
	t.Cleanup(func() { one.label(NewWithT(t), "leaky-") })
	g.Expect(env.Apply(ctx, "{apiVersion: v1, kind: Secret, metadata: {namespace: team, name: leaky}, stringData: {values.yaml: 'password: sesame-8642'}}")).To(Succeed())
	g.Expect(env.Apply(ctx, simple("leaky", "1.0.0", "  valuesFrom: [{kind: Secret, name: leaky}]\n"))).To(Succeed())
	patch(g, "leaky", `{"spec":{"chartName":"leaky"}}`)
	g.Eventually(func(g Gomega) {
		g.Expect(told(proxy(g, "leaky"))).To(MatchRegexp("HelmReleaseProxiesReady=False HelmInstallOrUpgradeFailed: team/one: .*said by BundleDeployment cluster-team-one-[0-9a-f]+/hcp-leaky"))
		out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=leaky", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("sesame-8642"), "Fleet says it")
	}).Should(Succeed())
	says := func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "hcp,hrp,events.events.k8s.io", "-A", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("said by BundleDeployment"))
		g.Expect(out).NotTo(ContainSubstring("sesame-8642"))
		g.Expect(env.LogTail("muster-charts")).NotTo(ContainSubstring("sesame-8642"))
	}
	says(g)
	patch(g, "leaky", `{"spec":{"valuesFrom":null,"valuesTemplate":"password: public"}}`)
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=leaky", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		says(g)
		g.Expect(out).To(And(ContainSubstring("public"), Not(ContainSubstring("sesame-8642"))), "the agent has tried again")
	}).Should(Succeed())
	_, err := env.Kubectl(ctx, "-n", team, "delete", "hcp", "leaky")
	g.Expect(err).NotTo(HaveOccurred())
}
