package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
)

// Every metric, label and value that the shipped alerts and dashboard ask for is exposed:
// by both programs to the account that ships for it, and by the API server.
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
	used, err := os.ReadFile("../monitoring/testdata/used.txt")
	g.Expect(err).NotTo(HaveOccurred())

	g.Eventually(func(g Gomega) {
		server, err := kube.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		exposed := map[string]map[string]bool{"kube-apiserver": exposedBy(string(server))}
		for job, port := range map[string]string{syncerProcess: diagnosticsPort(g), webhookProcess: webhookFlag(g, "--diagnostics-address=:")} {
			_, body := scrape(g, "https://127.0.0.1:"+port+"/metrics", token)
			exposed[job] = exposedBy(body)
		}
		checked := 0
		for line := range strings.Lines(string(used)) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			checked++
			exposer, what, _ := strings.Cut(strings.TrimSpace(line), " ")
			g.Expect(isExposed(exposed[exposer], what)).To(BeTrue(), "%s does not expose %s", exposer, what)
		}
		g.Expect(checked).To(BeNumerically(">", 30))
	}).Should(Succeed())
}

// readerToken returns a token of the account that the shipped role lets read metrics.
func readerToken(g Gomega) string {
	manifest, err := filepath.Abs("../../manifests/monitoring/reader.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = env.Kubectl(ctx, "apply", "--server-side", "-f", manifest)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, `
apiVersion: v1
kind: Namespace
metadata: {name: monitoring}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: monitoring, name: prometheus-k8s}
`)).To(Succeed())
	account := get(g, &corev1.ServiceAccount{}, "monitoring", "prometheus-k8s")
	token := &authenticationv1.TokenRequest{}
	g.Expect(admin.SubResource("token").Create(ctx, account, token)).To(Succeed())
	return token.Status.Token
}

var labelPair = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// exposedBy returns what is in the text format: each metric, each "metric label", and
// each "metric label value".
func exposedBy(text string) map[string]bool {
	exposed := map[string]bool{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		metric := line[:strings.IndexAny(line, "{ ")]
		exposed[metric] = true
		for _, pair := range labelPair.FindAllStringSubmatch(line, -1) {
			exposed[metric+" "+pair[1]] = true
			exposed[fmt.Sprintf("%s %s %s", metric, pair[1], pair[2])] = true
		}
	}
	return exposed
}

// isExposed looks for a metric, a label or a value; a value may be ~ and a pattern.
func isExposed(exposed map[string]bool, what string) bool {
	label, pattern, isPattern := strings.Cut(what, " ~")
	if !isPattern {
		return exposed[what]
	}
	expression := regexp.MustCompile("^" + regexp.QuoteMeta(label) + " (?:" + pattern + ")$")
	for one := range exposed {
		if expression.MatchString(one) {
			return true
		}
	}
	return false
}
