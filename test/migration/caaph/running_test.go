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

// overlay sets the values that clusterctl sets. The last three arguments are the program's defaults. They are explicit
// because a process of this host may need another port and folder. Outside a pod the program knows no namespace for
// leader election.
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

// manifests returns the manifests that CAAPH ships, as a user installs them.
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
	// The stack routes the Service to this host, so its ports differ from the shipped ones.
	kubectl(g, "-n", namespace, "delete", "services", "--all")
	_, err := env.KubectlInput(ctx, manifests, "apply", "--server-side", "--force-conflicts", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	kubectl(g, "wait", "--for=condition=Established", "--timeout=60s", "crd/helmchartproxies.addons.cluster.x-k8s.io", "crd/helmreleaseproxies.addons.cluster.x-k8s.io")
	names, err := env.AdoptPart(ctx, namespace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names).To(ConsistOf(controller))
}

// proxies contains HelmChartProxies by name. Their chart is in an OCI registry, because CAAPH uses credentials and
// CAs only for those.
var proxies = map[string]string{
	"web":   "clusterSelector: {matchLabels: {web: 'yes'}}",
	"named": "clusterSelector: {matchLabels: {cluster.x-k8s.io/cluster-name: one}}, releaseName: named",
	"once":  "clusterSelector: {matchLabels: {cluster.x-k8s.io/cluster-name: one}}, releaseName: once, reconcileStrategy: InstallOnce",
	// later is created once Muster has taken over.
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

// publish pushes the chart, and creates the Secret with access to it.
func publish(g Gomega) {
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0", "1.3.0"} {
		_, err := charts.Publish(ctx, "simple", version, map[string]string{"values.yaml": template})
		g.Expect(err).NotTo(HaveOccurred())
	}
	secret, err := json.Marshal(charts.Secret())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: repository}, data: %s}", team, secret))).To(Succeed())
}

// isCAAPHs expects CAAPH's finalizers on its objects, and no others.
func isCAAPHs(g Gomega) {
	g.Eventually(func(g Gomega) {
		for _, kind := range []string{"helmchartproxy", "helmreleaseproxy"} {
			for _, finalizers := range strings.Fields(kubectl(g, "-n", team, "get", kind, "-o", `jsonpath={range .items[*]}{.metadata.finalizers}{"\n"}{end}`)) {
				g.Expect(finalizers).To(Equal(`["` + kind + `.addons.cluster.x-k8s.io"]`))
			}
		}
	}).Should(Succeed())
}
