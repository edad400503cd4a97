package helm

import (
	"encoding/json"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
)

// required is a Policy that refuses every Bundle without a ServiceAccount.
const required = "apiVersion: fleet.cattle.io/v1alpha1\nkind: Policy\nmetadata: {namespace: " + team + ", name: required}\nrequireServiceAccount: true\n"

// isRefused waits until Fleet refuses the Bundle of a HelmChartProxy. Muster knows that by these words.
func isRefused(g Gomega, name string) {
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "-n", team, "get", "bundles", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io="+name, "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].message}`)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("serviceAccount"))
	}).Should(Succeed())
}

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

	g.Expect(env.Apply(ctx, required)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(told(proxy(g, "policed"))).To(ContainSubstring("PolicyRefuses")) }).Should(Succeed())
	two.label(g, "policed-")
	isRefused(g, "policed")
	two.says(g, "policed", "policed", "who", two.name)

	_, err := env.Kubectl(ctx, "-n", team, "delete", "policies.fleet.cattle.io", "required")
	g.Expect(err).NotTo(HaveOccurred())
	two.says(g, "policed", "policed", "who", "")
	g.Eventually(func(g Gomega) { isReady(g, "policed") }).Should(Succeed())
	g.Expect(one.uidOf(g, "policed", "policed-values")).To(Equal(before), "it was installed anew")
	deleteProxy(g, team, "policed")
}

// Muster may write a Bundle before it sees a Policy. Fleet has no event then when the Policy goes.
func TestPolicyThatMusterDoesNotKnow(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	one.label(g, "unaware=yes")
	g.Expect(env.Apply(ctx, simple("unaware", "1.0.0", ""))).To(Succeed())
	one.says(g, "unaware", "unaware", "version", "1.0.0")

	before, err := env.Kubectl(ctx, "get", "clusterrole", "muster-helm", "-o", "json")
	g.Expect(err).NotTo(HaveOccurred())
	var role rbacv1.ClusterRole
	g.Expect(json.Unmarshal([]byte(before), &role)).To(Succeed())
	role.ResourceVersion = ""
	all, err := json.Marshal(role)
	g.Expect(err).NotTo(HaveOccurred())
	role.Rules = slices.DeleteFunc(role.Rules, func(its rbacv1.PolicyRule) bool { return slices.Contains(its.Resources, "policies") })
	after, err := json.Marshal(role)
	g.Expect(err).NotTo(HaveOccurred())
	replace := func(role string) {
		_, err := env.KubectlInput(ctx, role, "replace", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(env.Stop(ctx, "muster-helm")).To(Succeed())
	replace(string(after))
	t.Cleanup(func() { replace(string(all)); g.Expect(env.Restart(ctx, "muster-helm")).To(Succeed()) })
	g.Expect(env.Start(ctx, "muster-helm")).To(Succeed())
	g.Expect(env.Apply(ctx, required)).To(Succeed())
	patch(g, "unaware", `{"spec":{"version":"1.1.0"}}`)
	isRefused(g, "unaware")
	g.Expect(one.data(g, "unaware", "unaware-values", "version")).To(Equal("1.0.0"))

	_, err = env.Kubectl(ctx, "-n", team, "delete", "policies.fleet.cattle.io", "required")
	g.Expect(err).NotTo(HaveOccurred())
	one.says(g, "unaware", "unaware", "version", "1.1.0")
	deleteProxy(g, team, "unaware")
}
