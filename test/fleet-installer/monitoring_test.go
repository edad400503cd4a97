package fleetinstaller

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/test/fixture"
)

// The installer exposes everything that the shipped alerts and dashboard query, to the account that ships for it, and
// with a certificate that clients can verify. Where the installer does not run, the syncer says so.
func TestMonitoring(t *testing.T) {
	g := fresh(t)
	withoutRelease(g, "0.16.0")
	ask(g, "{install: {version: 0.16.1}, config: {server: {custom: {apiServerUrl: 'https://fleet.example.com'}}}}")
	isReported(g, "FleetInstalled", metav1.ConditionFalse, "ForeignFleet")
	isReported(g, "FleetConfigured", metav1.ConditionTrue, "ConfiguredOutsideRelease")

	code, _, err := fixture.Scrape(ctx, env, "muster-installer", "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(code).To(Equal(http.StatusUnauthorized))
	token, err := fixture.MetricsReader(ctx, env, admin)
	g.Expect(err).NotTo(HaveOccurred())
	scrape := func(g Gomega, process string) string {
		code, body, err := fixture.Scrape(ctx, env, process, token)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(code).To(Equal(http.StatusOK))
		return body
	}
	g.Eventually(func(g Gomega) {
		body := scrape(g, "muster-installer")
		missing, asked, err := fixture.Unexposed(map[string]string{"muster-installer": body})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(missing).To(BeEmpty())
		g.Expect(asked).To(BeNumerically(">", 30))
		for _, line := range []string{
			`muster_fleet_condition{condition="FleetInstalled",reason="ForeignFleet",status="False"} 1`,
			`muster_fleet_condition{condition="FleetInstalled",reason="InstallFailed",status="False"} 0`,
			`muster_fleet_condition{condition="FleetConfigured",reason="ConfiguredOutsideRelease",status="True"} 1`,
			`muster_fleet_info{version="0.16.0"} 1`,
			`muster_installer_operations_total{release="fleet",result="failed"} `,
		} {
			g.Expect(body).To(ContainSubstring(line))
		}
	}).Should(Succeed())
	g.Eventually(func() error { return fixture.ServesItsCertificate(ctx, env, admin, "muster-installer") }).Should(Succeed())

	runs := func(value string) func(Gomega) {
		return func(g Gomega) {
			g.Expect(scrape(g, "muster-syncer")).To(ContainSubstring("muster_config_condition{condition=\"InstallerAvailable\"} " + value + "\n"))
		}
	}
	g.Eventually(runs("1")).Should(Succeed())
	g.Expect(env.Stop(ctx, "muster-installer")).To(Succeed())
	g.Eventually(runs("0")).Should(Succeed())
	g.Expect(env.Start(ctx, "muster-installer")).To(Succeed())
	g.Eventually(runs("1")).Should(Succeed())
}
