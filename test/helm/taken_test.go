package helm

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
)

// Two HelmChartProxies ask for one release on a cluster with a real agent. The one that has it keeps it, however often its
// rival changes, and hands it over when a label leaves it.
func TestReleaseTaken(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	ask := func(name, version string) string {
		return strings.Replace(simple(name, version, "  valuesTemplate: 'who: "+name+"'\n  releaseName: ccm-oot"), "\n  namespace: "+name+"\n", "\n  namespace: kube-system\n", 1)
	}
	waits := func(g Gomega, name, whose string) {
		condition := meta.FindStatusCondition(proxy(g, name).Status.Conditions, "Ready")
		g.Expect(condition).NotTo(BeNil())
		g.Expect(condition.Reason).To(Equal("ReleaseTaken"), condition.Message)
		g.Expect(condition.Message).To(ContainSubstring("HelmChartProxy " + whose + " has release kube-system/ccm-oot"))
	}
	one.label(g, "ccm=yes")
	g.Expect(env.Apply(ctx, ask("ccm", "1.0.0"))).To(Succeed())
	one.says(g, "kube-system", "ccm-oot", "who", "ccm")
	g.Eventually(func(g Gomega) { isReady(g, "ccm") }).Should(Succeed())
	before := one.uidOf(g, "kube-system", "ccm-oot-values")

	g.Expect(env.Apply(ctx, ask("ccm-ci", "1.0.0"))).To(Succeed())
	one.label(g, "ccm-ci=yes")
	g.Eventually(func(g Gomega) { waits(g, "ccm-ci", "ccm") }).Should(Succeed())
	patch(g, "ccm-ci", `{"spec":{"version":"1.1.0"}}`)
	patch(g, "ccm", `{"spec":{"version":"1.1.0"}}`)
	one.says(g, "kube-system", "ccm-oot", "version", "1.1.0")
	g.Expect(one.data(g, "kube-system", "ccm-oot-values", "who")).To(Equal("ccm"))
	g.Eventually(func(g Gomega) { isReady(g, "ccm"); waits(g, "ccm-ci", "ccm") }).Should(Succeed())
	g.Expect(one.uidOf(g, "kube-system", "ccm-oot-values")).To(Equal(before), "it was installed anew")

	one.label(g, "ccm-") // Its rival gets the release when it is uninstalled.
	one.says(g, "kube-system", "ccm-oot", "who", "ccm-ci")
	g.Eventually(func(g Gomega) { isReady(g, "ccm-ci") }).Should(Succeed())
	one.label(g, "ccm=yes")
	g.Eventually(func(g Gomega) { waits(g, "ccm", "ccm-ci") }).Should(Succeed())
	g.Expect(one.data(g, "kube-system", "ccm-oot-values", "who")).To(Equal("ccm-ci"))
	deleteProxy(g, team, "ccm")
	g.Expect(one.data(g, "kube-system", "ccm-oot-values", "who")).To(Equal("ccm-ci"), "who waits uninstalls nothing")
	deleteProxy(g, team, "ccm-ci")
}
