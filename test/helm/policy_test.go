package helm

import (
	"testing"

	. "github.com/onsi/gomega"
)

// Fleet ignores that a target goes while a Policy refuses the Bundle, and does not see that the Policy goes.
func TestPolicyEnds(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	for _, its := range []cluster{one, two} {
		its.label(g, "policed=yes")
	}
	g.Expect(env.Apply(ctx, simple("policed", "1.0.0", "  valuesTemplate: 'who: {{ .Cluster.metadata.name }}'\n"))).To(Succeed())
	for _, its := range []cluster{one, two} {
		its.says(g, "policed", "policed", "who", its.name)
	}
	g.Eventually(func(g Gomega) { isReady(g, "policed") }).Should(Succeed())
	before := one.uidOf(g, "policed", "policed-values")

	g.Expect(env.Apply(ctx, "apiVersion: fleet.cattle.io/v1alpha1\nkind: Policy\nmetadata: {namespace: "+team+", name: required}\nrequireServiceAccount: true\n")).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(told(proxy(g, "policed"))).To(ContainSubstring("PolicyRefuses")) }).Should(Succeed())
	two.label(g, "policed-")
	g.Eventually(func(g Gomega) { // Muster knows refused Bundles by these words.
		out, err := env.Kubectl(ctx, "-n", team, "get", "bundles", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=policed", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].message}`)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("serviceAccount"))
	}).Should(Succeed())
	two.says(g, "policed", "policed", "who", two.name)

	_, err := env.Kubectl(ctx, "-n", team, "delete", "policies.fleet.cattle.io", "required")
	g.Expect(err).NotTo(HaveOccurred())
	two.says(g, "policed", "policed", "who", "")
	g.Eventually(func(g Gomega) { isReady(g, "policed") }).Should(Succeed())
	g.Expect(one.uidOf(g, "policed", "policed-values")).To(Equal(before), "it was installed anew")
	deleteProxy(g, team, "policed")
}
