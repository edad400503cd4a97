package integration

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
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
