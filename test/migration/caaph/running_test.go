package caaph

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

const (
	namespace  = "caaph-system"
	controller = "caaph-controller-manager"
)

// overlay fills in what clusterctl fills in. The last three arguments are defaults of the program: they are written
// out because a process of this host may have to take another port and folder. Outside a pod the program knows no
// namespace for leader election.
const overlay = `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [config/default]
patches:
- target: {kind: Deployment}
  patch: |
    - op: replace
      path: /spec/template/spec/containers/0/args
      value: [--leader-elect=false, "--diagnostics-address=:8443", --insecure-diagnostics=false, --sync-period=10m, --v=2,
        "--health-addr=:9440", --webhook-port=9443, --webhook-cert-dir=/tmp/k8s-webhook-server/serving-certs]
`

// manifests are those that CAAPH ships, as somebody installs them.
func manifests(t *testing.T, g Gomega) string {
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	source, err := parts.ModuleDir(ctx, filepath.Join(root, "test/parts/caaph"), parts.CAAPHModule)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	g.Expect(os.CopyFS(filepath.Join(dir, "config"), os.DirFS(filepath.Join(source, "config")))).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600)).To(Succeed())
	return kubectl(g, "kustomize", dir)
}

// installCAAPH installs CAAPH, and runs it as a kubelet would.
func installCAAPH(g Gomega, manifests string) {
	// The stack has led the Service to this host: its ports are not those that ship.
	kubectl(g, "-n", namespace, "delete", "services", "--all")
	_, err := env.KubectlInput(ctx, manifests, "apply", "--server-side", "--force-conflicts", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	kubectl(g, "wait", "--for=condition=Established", "--timeout=60s", "crd/helmchartproxies.addons.cluster.x-k8s.io", "crd/helmreleaseproxies.addons.cluster.x-k8s.io")
	names, err := env.AdoptPart(ctx, namespace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names).To(ConsistOf(controller))
}

// proxies are HelmChartProxies by their names, of a chart in an OCI registry: CAAPH uses credentials and CAs for
// no other.
var proxies = map[string]string{
	"web":   "clusterSelector: {matchLabels: {web: 'yes'}}",
	"named": "clusterSelector: {matchLabels: {cluster.x-k8s.io/cluster-name: one}}, releaseName: named",
	"once":  "clusterSelector: {matchLabels: {cluster.x-k8s.io/cluster-name: one}}, releaseName: once, reconcileStrategy: InstallOnce",
	// later is made when Muster has taken over.
	"later": "clusterSelector: {matchLabels: {cluster.x-k8s.io/cluster-name: two}}",
}

const values = "who: {{ .Cluster.metadata.name }}"

func create(g Gomega, name string) {
	_, err := env.KubectlInput(ctx, fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s}
spec: {%s, repoURL: "%s", chartName: simple, version: 1.0.0, namespace: apps, valuesTemplate: %q,
  credentials: {secret: {name: repository}}, tlsConfig: {caSecret: {name: repository}}}
`, team, name, proxies[name], charts.URL(), values), "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
}

// publish pushes the chart, and makes the Secret with which it is reached.
func publish(g Gomega) {
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0", "1.3.0"} {
		_, err := charts.Publish(ctx, "simple", version, map[string]string{"values.yaml": template})
		g.Expect(err).NotTo(HaveOccurred())
	}
	secret, err := json.Marshal(charts.Secret())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: repository}, data: %s}", team, secret))).To(Succeed())
}

// isCAAPHs expects CAAPH to have what its finalizers say that it has.
func isCAAPHs(g Gomega) {
	g.Eventually(func(g Gomega) {
		for _, kind := range []string{"helmchartproxy", "helmreleaseproxy"} {
			for _, finalizers := range strings.Fields(kubectl(g, "-n", team, "get", kind, "-o", `jsonpath={range .items[*]}{.metadata.finalizers}{"\n"}{end}`)) {
				g.Expect(finalizers).To(Equal(`["` + kind + `.addons.cluster.x-k8s.io"]`))
			}
		}
	}).Should(Succeed())
}
