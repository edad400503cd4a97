package integration

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/test/fixture"
)

// Metrics are for those who may read them, and hold Muster's own.
func TestMetrics(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")

	code, _ := scrape(g, syncerProcess, "")
	g.Expect(code).To(Equal(http.StatusUnauthorized))

	// A refusal is remembered for a while: who is refused is not who is let in later.
	code, _ = scrape(g, syncerProcess, tokenOf(g, s.namespace, "stranger"))
	g.Expect(code).To(Equal(http.StatusForbidden))

	token := readerToken(g)
	g.Eventually(func(g Gomega) {
		code, body := scrape(g, syncerProcess, token)
		g.Expect(code).To(Equal(http.StatusOK))
		g.Expect(body).To(MatchRegexp(`muster_clusters\{state="imported"\} [1-9]`))
		g.Expect(body).To(MatchRegexp(`muster_apply_total\{kind="Cluster",result="created"\} [1-9]`))
		g.Expect(body).To(ContainSubstring("muster_import_latency_seconds_count"))
	}).Should(Succeed())
}

// Metrics are served with a certificate that can be verified, as the ServiceMonitors that
// ship do: by the CA beside it, and under its name.
func TestMetricsCertificate(t *testing.T) {
	for _, program := range []string{syncerProcess, webhookProcess} {
		t.Run(program, func(t *testing.T) {
			g := NewWithT(t)
			verified := func(g Gomega) *x509.Certificate {
				secret := get(g, &corev1.Secret{}, "muster-system", program+"-tls")
				roots := x509.NewCertPool()
				g.Expect(roots.AppendCertsFromPEM(secret.Data["ca.crt"])).To(BeTrue())
				connection, err := tls.Dial("tcp", "127.0.0.1:"+portOf(g, program, "--diagnostics-address=:"), &tls.Config{RootCAs: roots, ServerName: program + ".muster-system.svc", MinVersion: tls.VersionTLS12})
				g.Expect(err).NotTo(HaveOccurred())
				defer connection.Close() //nolint:errcheck // Nothing was written.
				return connection.ConnectionState().PeerCertificates[0]
			}
			var first *x509.Certificate
			g.Eventually(func(g Gomega) { first = verified(g) }).Should(Succeed())
			if program != syncerProcess {
				return // Its rotation is tested where it is admission's.
			}
			g.Expect(admin.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: program + "-tls"}})).To(Succeed())
			g.Eventually(func(g Gomega) { g.Expect(verified(g).Equal(first)).To(BeFalse(), "the old one is served") }).Should(Succeed())
		})
	}
}

// tokenOf creates a ServiceAccount and returns a token of it.
func tokenOf(g Gomega, namespace, name string) string {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	g.Expect(admin.Create(ctx, account)).To(Succeed())
	token := &authenticationv1.TokenRequest{}
	g.Expect(admin.SubResource("token").Create(ctx, account, token)).To(Succeed())
	return token.Status.Token
}

func scrape(g Gomega, process, token string) (int, string) {
	code, body, err := fixture.Scrape(ctx, env, process, token)
	g.Expect(err).NotTo(HaveOccurred())
	return code, body
}

func portOf(g Gomega, process, flag string) string {
	port, err := fixture.PortOf(env, process, flag)
	g.Expect(err).NotTo(HaveOccurred())
	return port
}
