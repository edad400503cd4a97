package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Metrics are for those who may read them, and hold Muster's own.
func TestMetrics(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	address := "https://127.0.0.1:" + diagnosticsPort(g) + "/metrics"

	code, _ := scrape(g, address, "")
	g.Expect(code).To(Equal(http.StatusUnauthorized))

	// A refusal is remembered for a while: who is refused is not who is let in later.
	code, _ = scrape(g, address, tokenOf(g, s.namespace, "stranger"))
	g.Expect(code).To(Equal(http.StatusForbidden))

	token := readerToken(g)
	g.Eventually(func(g Gomega) {
		code, body := scrape(g, address, token)
		g.Expect(code).To(Equal(http.StatusOK))
		g.Expect(body).To(MatchRegexp(`muster_clusters\{state="imported"\} [1-9]`))
		g.Expect(body).To(MatchRegexp(`muster_apply_total\{kind="Cluster",result="created"\} [1-9]`))
		g.Expect(body).To(ContainSubstring("muster_import_latency_seconds_count"))
	}).Should(Succeed())
}

// Metrics are served with a certificate that can be verified, as the ServiceMonitors that
// ship do: by the CA beside it, and under its name.
func TestMetricsCertificate(t *testing.T) {
	for program, port := range map[string]func(Gomega) string{
		"muster-syncer":  diagnosticsPort,
		"muster-webhook": func(g Gomega) string { return webhookFlag(g, "--diagnostics-address=:") },
	} {
		t.Run(program, func(t *testing.T) {
			g := NewWithT(t)
			verified := func(g Gomega) *x509.Certificate {
				secret := get(g, &corev1.Secret{}, "muster-system", program+"-tls")
				roots := x509.NewCertPool()
				g.Expect(roots.AppendCertsFromPEM(secret.Data["ca.crt"])).To(BeTrue())
				connection, err := tls.Dial("tcp", "127.0.0.1:"+port(g), &tls.Config{RootCAs: roots, ServerName: program + ".muster-system.svc", MinVersion: tls.VersionTLS12})
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

func scrape(g Gomega, address, token string) (int, string) {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, address, http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close() //nolint:errcheck // It was only read.
	body, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return response.StatusCode, string(body)
}

// diagnosticsPort finds the port the syncer was given: the first line of its log says.
func diagnosticsPort(g Gomega) string {
	log, err := os.ReadFile(env.LogPath(syncerProcess))
	g.Expect(err).NotTo(HaveOccurred())
	all := regexp.MustCompile(`--diagnostics-address=:(\d+)`).FindAllSubmatch(log, -1)
	g.Expect(all).NotTo(BeEmpty())
	return string(all[len(all)-1][1])
}
