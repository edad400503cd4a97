package integration

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// What the shipped alerts and the dashboard ask of the optional component helm is exposed, to the
// account that ships for it, and with a certificate that can be verified.
func TestMonitoringOfHelmChartProxies(t *testing.T) {
	g := NewWithT(t)
	const process = "muster-charts"
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := env.Stop(ctx, process); err != nil {
			t.Error(err)
		}
		if _, err := env.Kubectl(ctx, "delete", "-k", filepath.Join(root, "manifests", "helm"), "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	g.Expect(env.StartComponent(ctx, "helm")).To(Succeed())
	noConfig(t)
	t.Cleanup(func() { noConfig(t) })
	g.Expect(admin.Create(ctx, fixture.Config())).To(Succeed())
	g.Eventually(func(g Gomega) {
		config := fixture.Config()
		exists(g, config)
		g.Expect(conditionsOf(config)).To(HaveKeyWithValue("ChartsAvailable", metav1.ConditionTrue))
	}, 2*time.Minute).Should(Succeed())
	namespace := newNamespace(t, g, "watched-charts", nil)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: idle}
spec:
  clusterSelector: {matchLabels: {charts: none}}
  repoURL: https://charts.example.com
  chartName: any
  version: 1.0.0
`, namespace))).To(Succeed())
	token := readerToken(g)
	g.Eventually(func(g Gomega) {
		code, body, err := fixture.Scrape(ctx, env, process, token)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(code).To(Equal(http.StatusOK))
		missing, asked, err := fixture.Unexposed(map[string]string{process: body})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(missing).To(BeEmpty())
		g.Expect(asked).To(BeNumerically(">", 20))
		g.Expect(body).To(ContainSubstring(`muster_helmchartproxies_by_reason{reason="Ready"} 1`))
	}).Should(Succeed())
	code, _, err := fixture.Scrape(ctx, env, process, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(code).To(Equal(http.StatusUnauthorized))
	g.Eventually(func() error { return fixture.ServesItsCertificate(ctx, env, admin, process) }).Should(Succeed())
}
