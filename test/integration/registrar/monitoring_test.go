package registrar

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
)

const process = "muster-registrar"

// What the shipped alerts ask of the registrar is exposed, to the account that ships for it,
// and with a certificate that can be verified.
func TestMonitoring(t *testing.T) {
	g := NewWithT(t)
	ready(g, "edge")
	code, _, err := fixture.Scrape(ctx, env, process, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(code).To(Equal(http.StatusUnauthorized))
	token, err := fixture.MetricsReader(ctx, env, admin)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		code, body, err := fixture.Scrape(ctx, env, process, token)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(code).To(Equal(http.StatusOK))
		missing, asked, err := fixture.Unexposed(map[string]string{process: body})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(missing).To(BeEmpty())
		g.Expect(asked).To(BeNumerically(">", 5))
		g.Expect(body).To(MatchRegexp(`muster_manifests_by_reason\{reason="ManifestReady"\} [1-9]`))
		for _, kind := range []string{"ClusterRegistration", "Secret"} {
			g.Expect(body).To(MatchRegexp(`muster_apply_total\{kind="` + kind + `",result="created"\} [1-9]`))
		}
	}).Should(Succeed())

	g.Eventually(func() error { return fixture.ServesItsCertificate(ctx, env, admin, process) }).Should(Succeed())
}
