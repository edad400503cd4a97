package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack/process"
)

// A node with a failing webhook can be drained, and the webhook of a fail-closed entry is scheduled before pods
// without a priority class.
func TestWebhookYieldsAndIsPreferred(t *testing.T) {
	g := NewWithT(t)
	budget := get(g, &policyv1.PodDisruptionBudget{}, "muster-system", webhookProcess)
	g.Expect(budget.Spec.UnhealthyPodEvictionPolicy).To(HaveValue(Equal(policyv1.AlwaysAllow)))
	class := get(g, &schedulingv1.PriorityClass{}, "", webhookProcess)
	g.Expect(class.GlobalDefault).To(BeFalse())
	pod := podOf(get(g, &appsv1.Deployment{}, "muster-system", webhookProcess))
	g.Expect(admin.Create(ctx, pod, client.DryRunAll)).To(Succeed())
	g.Expect(pod.Spec.Priority).To(HaveValue(Equal(class.Value)))
	g.Expect(class.Value).To(And(BeNumerically(">", 0), BeNumerically("<", 1_000_000_000)))
}

// The API server and kubelets, which no selector matches, reach their ports; only namespaces labelled for scraping
// reach the metrics port.
func TestNetworkPolicies(t *testing.T) {
	for component, open := range map[string][]string{webhookProcess: {"webhook", "health"}, syncerProcess: {"health"}} {
		g := NewWithT(t)
		policy := get(g, &networkingv1.NetworkPolicy{}, "muster-system", component)
		pod := podOf(get(g, &appsv1.Deployment{}, "muster-system", component))
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(selector.Matches(labels.Set(pod.Labels))).To(BeTrue())
		reached := map[string][]string{}
		for _, rule := range policy.Spec.Ingress {
			from := "all"
			for _, peer := range rule.From {
				g.Expect(peer.PodSelector).To(BeNil())
				g.Expect(peer.NamespaceSelector.MatchLabels).To(Equal(map[string]string{"fleet.addons.cluster.x-k8s.io/scrapes-metrics": "true"}))
				from = "scrapers"
			}
			for _, port := range rule.Ports {
				reached[from] = append(reached[from], port.Port.StrVal)
			}
		}
		g.Expect(reached).To(And(HaveLen(2), HaveKeyWithValue("all", ConsistOf(open)), HaveKeyWithValue("scrapers", ConsistOf("metrics"))))
		declared := []string{}
		for _, port := range pod.Spec.Containers[0].Ports {
			declared = append(declared, port.Name)
		}
		g.Expect(declared).To(ConsistOf(append(open, "metrics")))
	}
}

// Go knows the memory limit and collects harder before reaching it; the tests here run with the same setting.
func TestGoKnowsTheMemoryLimit(t *testing.T) {
	for _, name := range []string{webhookProcess, syncerProcess} {
		g := NewWithT(t)
		container := get(g, &appsv1.Deployment{}, "muster-system", name).Spec.Template.Spec.Containers[0]
		i := slices.IndexFunc(container.Env, func(variable corev1.EnvVar) bool { return variable.Name == "GOMEMLIMIT" })
		g.Expect(i).To(BeNumerically(">=", 0))
		soft, err := resource.ParseQuantity(strings.TrimSuffix(container.Env[i].Value, "B"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(soft.AsApproximateFloat64() / container.Resources.Limits.Memory().AsApproximateFloat64()).To(BeNumerically("~", 0.9, 0.01))
		variables, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pidOf(name)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(bytes.Split(variables, []byte{0})).To(ContainElement(BeEquivalentTo("GOMEMLIMIT=" + container.Env[i].Value)))
	}
}

func pidOf(name string) int {
	all := env.Processes()
	return all[slices.IndexFunc(all, func(p process.Status) bool { return p.Name == name })].PID
}

// Every metric, label and value that the shipped alerts and dashboard query exists. The syncer and the webhook expose
// theirs to the account that ships for it, and the API server exposes the rest.
func TestMonitoringAsksForWhatIsExposed(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configure(t, g, "{}")
	s.imported(g, "one")

	// The API server counts failed calls only from the first one on.
	restart := stop(t, g, webhookProcess)
	open := fixture.Cluster(s.namespace, "open", "standard", "")
	g.Expect(admin.Create(ctx, open, client.DryRunAll)).To(Succeed())
	g.Expect(admin.Create(ctx, s.cluster("closed"), client.DryRunAll)).To(MatchError(ContainSubstring("class-access.clusters.fleet.addons.cluster.x-k8s.io")))
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
		isAsked(g, exposed, 30)
	}).Should(Succeed())
}

// isAsked expects more than least queries to these programs, and everything that they query to be exposed.
func isAsked(g Gomega, exposed map[string]string, least int) {
	missing, asked, err := fixture.Unexposed(exposed)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(missing).To(BeEmpty())
	g.Expect(asked).To(BeNumerically(">", least))
}

// readerToken returns a token of an account to which the shipped role grants metrics.
func readerToken(g Gomega) string {
	token, err := fixture.MetricsReader(ctx, env, admin)
	g.Expect(err).NotTo(HaveOccurred())
	return token
}

// The optional component helm exposes everything that the shipped alerts and the dashboard query, to the account that
// ships for it, and with a certificate that clients can verify.
func TestMonitoringOfHelmChartProxies(t *testing.T) {
	g := NewWithT(t)
	const process = "muster-helm"
	g.Expect(env.StartComponent(ctx, "helm")).To(Succeed())
	t.Cleanup(func() { removeHelm(t) })
	configure(t, g, "{}")
	g.Eventually(func(g Gomega) {
		g.Expect(conditionsOf(readConfig(g))).To(HaveKeyWithValue("HelmAvailable", metav1.ConditionTrue))
	}, 2*time.Minute).Should(Succeed())
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: without-its-chart}
spec: {clusterSelector: {matchLabels: {charts: none}}, repoURL: "https://charts.example.com", chartName: any, version: 1.0.0}
`, newNamespace(t, g, "watched-charts", nil)))).To(Succeed())
	token := readerToken(g)
	g.Eventually(func(g Gomega) {
		code, body := scrape(g, process, token)
		g.Expect(code).To(Equal(http.StatusOK))
		isAsked(g, map[string]string{process: body}, 20)
		g.Expect(body).To(ContainSubstring(`muster_helmchartproxies_by_reason{reason="HelmReleaseProxyCreationFailed"} 1`))
	}).Should(Succeed())
	code, _ := scrape(g, process, "")
	g.Expect(code).To(Equal(http.StatusUnauthorized))
	g.Eventually(func() error { return fixture.ServesItsCertificate(ctx, env, admin, process) }).Should(Succeed())
}

// Only authorized accounts can read the metrics, which include Muster's own. Clients can verify the certificate as
// the shipped ServiceMonitors do: against the CA in the same Secret, and under its name.
func TestMetrics(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	// The authorizer's refusal is cached for a while, so the account that is refused here is not the one that gets
	// access later.
	create(g, named(&corev1.ServiceAccount{}, s.namespace, "stranger"))
	for token, want := range map[string]int{"": http.StatusUnauthorized, tokenOf(g, s.namespace, "stranger"): http.StatusForbidden} {
		code, _ := scrape(g, syncerProcess, token)
		g.Expect(code).To(Equal(want))
	}
	token := readerToken(g)
	g.Eventually(func(g Gomega) {
		code, body := scrape(g, syncerProcess, token)
		g.Expect(code).To(Equal(http.StatusOK))
		g.Expect(body).To(And(MatchRegexp(`muster_clusters\{state="imported"\} [1-9]`), ContainSubstring("muster_import_latency_seconds_count"),
			MatchRegexp(`muster_apply_total\{kind="Cluster",result="created"\} [1-9]`)))
	}).Should(Succeed())

	for _, program := range []string{webhookProcess, syncerProcess} {
		g.Eventually(func() error { return fixture.ServesItsCertificate(ctx, env, admin, program) }).Should(Succeed())
	}
	// The tests of admission cover the rotation of the webhook's certificate.
	before := secretData(g, syncerProcess+"-tls", "tls.crt")
	remove(g, named(&corev1.Secret{}, "muster-system", syncerProcess+"-tls"))
	g.Eventually(func(g Gomega) {
		g.Expect(secretData(g, syncerProcess+"-tls", "tls.crt")).NotTo(Equal(before))
		servesSecret(g, syncerProcess, "--diagnostics-address=:")
	}).Should(Succeed())
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
