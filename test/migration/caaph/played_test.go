package caaph

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/charts/repository"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// installation is what CAAPH has on an API server besides its CRDs.
const installation = `
apiVersion: v1
kind: Namespace
metadata: {name: caaph-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: caaph-system, name: caaph-controller-manager}
spec:
  replicas: 1
  selector: {matchLabels: {control-plane: controller-manager}}
  template:
    metadata: {labels: {control-plane: controller-manager}}
    spec:
      containers: [{name: manager, image: "registry.example.com/caaph:played"}]
`

// webhooks fail closed, and lead to a Service of which nobody is there.
func webhooks() string {
	var all strings.Builder
	for _, its := range []struct{ kind, name, prefix string }{
		{"MutatingWebhookConfiguration", "caaph-mutating-webhook-configuration", ""},
		{"ValidatingWebhookConfiguration", "caaph-validating-webhook-configuration", "v"},
	} {
		fmt.Fprintf(&all, "---\napiVersion: admissionregistration.k8s.io/v1\nkind: %s\nmetadata: {name: %s}\nwebhooks:\n", its.kind, its.name)
		for _, resource := range []string{"helmchartproxies", "helmreleaseproxies"} {
			fmt.Fprintf(&all, `- name: %s%s.kb.io
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: caaph-webhook-service, namespace: caaph-system, path: /%s}}
  failurePolicy: Fail
  sideEffects: None
  rules: [{apiGroups: [addons.cluster.x-k8s.io], apiVersions: [v1alpha1], operations: [CREATE, UPDATE], resources: [%s]}]
`, its.prefix, resource, resource, resource)
		}
	}
	return all.String()
}

// musters are fields that CAAPH's CRD does not have.
var musters = []string{"correctDrift", "download", "namespaceSelector", "rollout", "valuesFrom"}

// crds are CAAPH's: those that ship, without what is Muster's, and with its own webhook.
func crds(g Gomega) string {
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	var all strings.Builder
	for _, plural := range []string{"helmchartproxies", "helmreleaseproxies"} {
		content, err := os.ReadFile(filepath.Join(root, "manifests/helm/addons.cluster.x-k8s.io_"+plural+".yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		crd := &unstructured.Unstructured{}
		g.Expect(yaml.Unmarshal(content, &crd.Object)).To(Succeed())
		crd.SetLabels(map[string]string{"cluster.x-k8s.io/provider": "addon-helm", "clusterctl.cluster.x-k8s.io": ""})
		crd.SetAnnotations(map[string]string{"cert-manager.io/inject-ca-from": "caaph-system/caaph-serving-cert"})
		spec := crd.Object["spec"].(map[string]any)
		spec["conversion"] = map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": []any{"v1"},
			"clientConfig":             map[string]any{"service": map[string]any{"namespace": "caaph-system", "name": "caaph-webhook-service", "path": "/convert"}},
		}}
		for _, field := range musters {
			unstructured.RemoveNestedField(spec["versions"].([]any)[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", field)
		}
		document, err := yaml.Marshal(crd.Object)
		g.Expect(err).NotTo(HaveOccurred())
		all.WriteString("---\n" + string(document))
	}
	return all.String()
}

// release is one that CAAPH has installed.
type release struct {
	proxy, cluster, name, version string
	generated                     bool
	// once says that it is installed once and for all.
	once bool
}

var releases = []release{
	{proxy: "web", cluster: "one", name: "simple-1716000000", version: "1.0.0", generated: true},
	{proxy: "web", cluster: "two", name: "simple-1716000007", version: "1.0.0", generated: true},
	{proxy: "named", cluster: "one", name: "named", version: "1.0.0"},
	{proxy: "once", cluster: "one", name: "once", version: "1.0.0", once: true},
}

const values = "who: {{ .Cluster.metadata.name }}"

// proxies are HelmChartProxies as CAAPH leaves them. That of what is installed once has been
// changed since.
func proxies() string {
	var all strings.Builder
	for _, its := range []struct{ name, selector, more, version string }{
		{"web", "{web: 'yes'}", "", "1.0.0"},
		{"named", "{cluster.x-k8s.io/cluster-name: one}", "releaseName: named, ", "1.0.0"},
		{"once", "{cluster.x-k8s.io/cluster-name: one}", "releaseName: once, reconcileStrategy: InstallOnce, ", "1.1.0"},
	} {
		fmt.Fprintf(&all, `---
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s, finalizers: [helmchartproxy.addons.cluster.x-k8s.io]}
spec: {%sclusterSelector: {matchLabels: %s}, repoURL: "%s", chartName: simple, version: %q, namespace: apps,
  options: {timeout: 10m0s, enableClientCache: false}, valuesTemplate: %q,
  credentials: {secret: {name: repository}, key: config.json}, tlsConfig: {caSecret: {name: repository}}}
`, team, its.name, its.more, its.selector, charts.URL, its.version, values)
	}
	return all.String()
}

// mirror is the HelmReleaseProxy of a release, as CAAPH leaves it.
func (r release) mirror(uid string) string {
	annotations := "helmreleaseproxy.addons.cluster.x-k8s.io/release-successfully-installed: 'true'"
	if r.generated {
		annotations += ", helmreleaseproxy.addons.cluster.x-k8s.io/is-release-name-generated: 'true'"
	}
	more := ""
	if r.once {
		more = "reconcileStrategy: InstallOnce, "
	}
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmReleaseProxy
metadata:
  namespace: %[1]s
  name: %[2]s
  finalizers: [helmreleaseproxy.addons.cluster.x-k8s.io]
  labels: {cluster.x-k8s.io/cluster-name: %[3]s, helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name: %[4]s}
  annotations: {%[5]s}
  ownerReferences: [{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: HelmChartProxy, name: %[4]s, uid: %[6]s, controller: true, blockOwnerDeletion: true}]
spec: {%[7]sclusterRef: {apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, namespace: %[1]s, name: %[3]s}, chartName: simple, repoURL: "%[8]s",
  releaseName: %[9]s, namespace: apps, version: %[10]s, values: "who: %[3]s", options: {timeout: 10m0s},
  credentials: {secret: {name: repository, namespace: %[1]s}, key: config.json}, tlsConfig: {caSecret: {name: repository, namespace: %[1]s}}}
`, team, r.mirrorName(), r.cluster, r.proxy, annotations, uid, more, charts.URL, r.name, r.version)
}

func (r release) mirrorName() string { return "simple-" + r.cluster + "-" + r.proxy }

// helm runs the Helm that CAAPH is built with, on a cluster.
func helm(g Gomega, program, cluster, input string, args ...string) string {
	cmd := exec.CommandContext(ctx, program, append(args, "--kubeconfig", env.HostedKubeconfig(team, cluster), "-n", "apps")...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+filepath.Dir(program), "HELM_CONFIG_HOME="+filepath.Dir(program))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	g.Expect(cmd.Run()).To(Succeed(), "%s %s", said.String(), out.String())
	return out.String()
}

// carryOut does with a release what CAAPH does.
func (r release) carryOut(g Gomega, program, version string) {
	ca := filepath.Join(filepath.Dir(program), "ca.crt")
	g.Expect(os.WriteFile(ca, charts.CA, 0o600)).To(Succeed())
	helm(g, program, r.cluster, "who: "+r.cluster, "upgrade", "--install", "--create-namespace", r.name, "simple", "--repo", charts.URL,
		"--version", version, "--ca-file", ca, "--username", repository.Username, "--password", repository.Password, "-f", "-")
}

// helm3 builds that Helm.
func helm3(g Gomega, dir string) string {
	program, err := fixture.Program("tools/helm3", "helm.sh/helm/v3/cmd/helm", dir)
	g.Expect(err).NotTo(HaveOccurred())
	return program
}
