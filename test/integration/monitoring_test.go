package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
)

// Every metric, label and value that the shipped alerts and dashboard ask for is exposed:
// by syncer and webhook to the account that ships for it, and by the API server.
func TestMonitoringAsksForWhatIsExposed(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{})
	s.imported(g, "one")

	// The API server counts calls in vain from the first one on.
	restart := stop(t, g, webhookProcess)
	open := fixture.Cluster(s.namespace, "open", "standard", "")
	g.Expect(admin.Create(ctx, open, client.DryRunAll)).To(Succeed())
	closed := fixture.Cluster(s.namespace, "closed", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, closed, client.DryRunAll)).To(MatchError(ContainSubstring("class-access.clusters.fleet.addons.cluster.x-k8s.io")))
	restart()
	g.Expect(admin.Create(ctx, open, client.DryRunAll)).To(Succeed())

	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	token := readerToken(g)
	g.Eventually(func(g Gomega) {
		server, err := kube.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		exposed := map[string]string{"kube-apiserver": string(server)}
		for _, job := range []string{syncerProcess, webhookProcess} {
			_, exposed[job] = scrape(g, job, token)
		}
		missing, asked, err := fixture.Unexposed(exposed)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(missing).To(BeEmpty())
		g.Expect(asked).To(BeNumerically(">", 30))
	}).Should(Succeed())
}

// readerToken returns a token of the account that the shipped role lets read metrics.
func readerToken(g Gomega) string {
	token, err := fixture.MetricsReader(ctx, env, admin)
	g.Expect(err).NotTo(HaveOccurred())
	return token
}
