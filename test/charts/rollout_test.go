package charts

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestRollout rolls a version out that fails: with maxUnavailable 1, no more than one Cluster gets it.
func TestRollout(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	g.Expect(charts.Publish("simple", "2.0.0", map[string]string{"values.yaml": simpleTemplate, "broken.yaml": `{{ fail "broken" }}`})).To(Succeed())
	one.label(g, "rolled=yes")
	two.label(g, "rolled=yes")
	g.Expect(env.Apply(ctx, simple("rolled", "1.0.0", "  rollout: {maxUnavailable: 1}\n  valuesTemplate: 'who: {{ .Cluster.metadata.name }}'"))).To(Succeed())
	for _, its := range []cluster{one, two} {
		its.says(g, "rolled", "rolled", "version", "1.0.0")
	}
	g.Eventually(func(g Gomega) { isReady(g, "rolled") }).Should(Succeed())
	// deployments returns how many Clusters are to have what is meant, and how many are not yet.
	deployments := func(g Gomega) (reached, waiting int) {
		out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=rolled",
			"-o", `jsonpath={range .items[*]}{.spec.deploymentID} {.spec.stagedDeploymentID} {"\n"}{end}`)
		g.Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(out) {
			if ids := strings.Fields(line); ids[0] == ids[1] {
				reached++
			} else {
				waiting++
			}
		}
		return reached, waiting
	}
	t.Run("one that fails reaches no second Cluster", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "rolled", `{"spec":{"version":"2.0.0"}}`)
		g.Eventually(func(g Gomega) {
			reached, waiting := deployments(g)
			g.Expect([]int{reached, waiting}).To(Equal([]int{1, 1}))
		}).Should(Succeed())
		g.Consistently(func(g Gomega) {
			_, waiting := deployments(g)
			g.Expect(waiting).To(Equal(1))
		}).WithTimeout(15 * time.Second).Should(Succeed())
		g.Expect(told(proxy(g, "rolled"))).To(ContainSubstring("the rollout has not reached the Cluster yet"))
		for _, its := range []cluster{one, two} {
			g.Expect(its.data(g, "rolled", "rolled-values", "version")).To(Equal("1.0.0"))
		}
	})
	t.Run("the next one reaches all", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "rolled", `{"spec":{"version":"1.1.0"}}`)
		for _, its := range []cluster{one, two} {
			its.says(g, "rolled", "rolled", "version", "1.1.0")
		}
		g.Eventually(func(g Gomega) { isReady(g, "rolled") }).Should(Succeed())
	})
	_, err := env.Kubectl(ctx, "-n", team, "delete", "hcp", "rolled")
	g.Expect(err).NotTo(HaveOccurred())
}
