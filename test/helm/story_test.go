package helm

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const configMapTemplate = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Values.controller.name }}
  namespace: {{ .Release.Namespace }}
data:
  chart: {{ .Chart.Version | quote }}
  release: {{ .Release.Name }}
  cidrs: {{ .Values.controller.nginxStatus.allowCidrs | quote }}
`

// nginx is the example of cluster-api-addon-provider-helm's documentation, with the
// repository's own address.
func nginx(version string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: nginx-ingress}
spec:
  clusterSelector: {matchLabels: {nginxIngressChart: enabled}}
  repoURL: %s
  chartName: nginx-ingress
  releaseName: nginx-ingress
  namespace: nginx
  version: %q
  options:
    waitForJobs: true
    wait: true
    timeout: 5m
    install: {createNamespace: true}
  valuesTemplate: |
    controller:
      name: "{{ .ControlPlane.metadata.name | trunc 3 }}-{{ .Cluster.metadata.name }}-nginx"
      nginxStatus:
        allowCidrs: {{ index .Cluster.spec.clusterNetwork.pods.cidrBlocks 0 }}
        infra: {{ .InfraCluster.kind }}
  credentials: {secret: {name: repository}, key: config.json}
  tlsConfig: {caSecret: {name: repository}}
`, team, charts.URL, version)
}

func repositorySecret() string {
	data := charts.Secret()
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: %s, name: repository}
data: {config.json: %s, ca.crt: %s}
`, team, base64.StdEncoding.EncodeToString(data["config.json"]), base64.StdEncoding.EncodeToString(data["ca.crt"]))
}

func proxy(g Gomega, name string) *addonsv1.HelmChartProxy {
	its := &addonsv1.HelmChartProxy{}
	g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: team, Name: name}, its)).To(Succeed())
	return its
}

// told returns the conditions of a HelmChartProxy as text, for messages.
func told(its *addonsv1.HelmChartProxy) string {
	var parts []string
	for _, condition := range its.Status.Conditions {
		parts = append(parts, fmt.Sprintf("%s=%s %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message))
	}
	return strings.Join(parts, "\n")
}

func isReady(g Gomega, name string) {
	its := proxy(g, name)
	g.Expect(its.Status.ObservedGeneration).To(Equal(its.Generation))
	for _, of := range []string{"Ready", "HelmReleaseProxySpecsUpToDate", "HelmReleaseProxiesReady"} {
		g.Expect(meta.IsStatusConditionTrue(its.Status.Conditions, of)).To(BeTrue(), told(its))
	}
}

// value reads a field of the data of a ConfigMap in the namespace of the release.
func (c cluster) value(g Gomega, name, key string) string {
	out, err := c.kubectl("-n", "nginx", "get", "configmap", name, "-o", "jsonpath={.data."+key+"}")
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

// releases returns the releases on a cluster, as helm list finds them.
func (c cluster) releases(g Gomega, namespace string) string {
	out, err := c.kubectl("-n", namespace, "get", "secrets", "-l", "owner=helm,status=deployed", "-o", "jsonpath={.items[*].metadata.name}")
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

func TestStory(t *testing.T) {
	g := NewWithT(t)
	g.Expect(charts.Publish("nginx-ingress", "1.0.0", map[string]string{"configmap.yaml": configMapTemplate})).To(Succeed())
	g.Expect(env.Apply(ctx, repositorySecret())).To(Succeed())
	begin := time.Now()
	g.Expect(env.Apply(ctx, nginx("1.0.0"))).To(Succeed())
	if !t.Run("the release is on both clusters, each with its own values", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) { isReady(g, "nginx-ingress") }).WithTimeout(4 * time.Minute).Should(Succeed())
		t.Logf("ready %s after it was applied", time.Since(begin).Round(100*time.Millisecond))
		for i, its := range []cluster{one, two} {
			name := its.name[:3] + "-" + its.name + "-nginx"
			g.Expect(its.value(g, name, "cidrs")).To(Equal(fmt.Sprintf("10.%d.0.0/16", 200+i)))
			g.Expect(its.value(g, name, "chart")).To(Equal("1.0.0"))
			g.Expect(its.releases(g, "nginx")).To(HavePrefix("sh.helm.release.v1.nginx-ingress.v"))
		}
		paths, refused := charts.Asked()
		g.Expect(strings.Join(paths, " ")).To(HaveSuffix("/index.yaml /nginx-ingress-1.0.0.tgz"))
		g.Expect(strings.Count(strings.Join(paths, " "), "nginx-ingress-1.0.0.tgz")).To(Equal(1), "a chart is downloaded once")
		g.Expect(refused).To(BeZero())
		isWhole(g, "nginx-ingress")
	}) {
		return
	}
	t.Run("it says what cluster-api-addon-provider-helm says", testStatus)
}

func testStatus(t *testing.T) {
	g := NewWithT(t)
	its := proxy(g, "nginx-ingress")
	g.Expect(its.Status.MatchingClusters).To(ConsistOf(
		corev1.ObjectReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Namespace: team, Name: "one"},
		corev1.ObjectReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Namespace: team, Name: "two"},
	))
	out, err := env.Kubectl(ctx, "-n", team, "get", "hcp", "nginx-ingress")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(out)).To(HaveExactElements("NAME", "READY", "REASON", "VERSION", "CLUSTERS", "ROLLOUT", "AGE", "nginx-ingress", "True", "Ready", "1.0.0", "2/2", Not(BeEmpty())))
	out, err = env.Kubectl(ctx, "-n", team, "get", "hrp", "-l", "cluster.x-k8s.io/cluster-name=one")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(out)).To(HaveExactElements("NAME", "CLUSTER", "READY", "REASON", "STATUS", "REVISION", "AGE", "nginx-ingress-one", "one", "True", "Ready", "deployed", MatchRegexp("^[1-9]$"), Not(BeEmpty())))
}
