package helm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/stack"
)

// simple is a HelmChartProxy for a test chart with one ConfigMap.
func simple(name, version, more string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s}
spec:
  clusterSelector: {matchLabels: {%[2]s: "yes"}}
  repoURL: %s
  chartName: simple
  version: %q
  namespace: %[2]s
  credentials: {secret: {name: repository}, key: config.json}
  tlsConfig: {caSecret: {name: repository}}
%[5]s
`, team, name, charts.URL, version, more)
}

// template of the chart simple: all values, and its name.
const simpleTemplate = `
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-values"}
data:
  version: {{ .Chart.Version | quote }}
  chart: {{ .Chart.Name }}
  who: {{ .Values.who | default "nobody" | quote }}
  password: {{ .Values.password | default "" | b64enc | quote }}
`

func publish(g Gomega, chart string, versions ...string) {
	for _, version := range versions {
		g.Expect(charts.Publish(chart, version, map[string]string{"values.yaml": simpleTemplate})).To(Succeed())
	}
	g.Expect(env.Apply(ctx, repositorySecret())).To(Succeed())
}

func (c cluster) label(g Gomega, label string) {
	_, err := env.Kubectl(ctx, "-n", c.namespace, "label", "--overwrite", "clusters.cluster.x-k8s.io", c.name, label)
	g.Expect(err).NotTo(HaveOccurred())
}

func (c cluster) data(g Gomega, namespace, name, key string) string {
	out, err := c.kubectl("-n", namespace, "get", "configmap", name, "-o", "jsonpath={.data."+key+"}", "--ignore-not-found")
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

// uidOf returns the UID of a ConfigMap on a cluster.
func (c cluster) uidOf(g Gomega, namespace, name string) string {
	out, err := c.kubectl("-n", namespace, "get", "configmap", name, "-o", "jsonpath={.metadata.uid}")
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

// says waits until the release's ConfigMap on a cluster has this value.
func (c cluster) says(g Gomega, namespace, release, key, want string) {
	g.Eventually(func(g Gomega) {
		g.Expect(c.data(g, namespace, release+"-values", key)).To(Equal(want), c.String())
	}).Should(Succeed())
}

func (c cluster) String() string { return c.namespace + "/" + c.name }

func patch(g Gomega, name, patch string) {
	_, err := env.Kubectl(ctx, "-n", team, "patch", "hcp", name, "--type=merge", "-p", patch)
	g.Expect(err).NotTo(HaveOccurred())
}

// deleteProxy deletes a HelmChartProxy, and waits until it is gone.
func deleteProxy(g Gomega, namespace, name string) {
	_, err := env.Kubectl(ctx, "-n", namespace, "delete", "hcp", name, "--timeout=3m")
	g.Expect(err).NotTo(HaveOccurred())
}

// writes lists the program's writes since then, without events and statuses.
func writes(g Gomega, since time.Time) []string {
	events, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-helm"), Since: since, Where: func(e stack.AuditEvent) bool {
		return slices.Contains([]string{"create", "update", "patch", "delete"}, e.Verb) &&
			slices.Contains([]string{"bundles", "configmaps", "secrets", "helmreleaseproxies"}, e.Resource) && e.Subresource == "" && e.Code < 300
	}})
	g.Expect(err).NotTo(HaveOccurred())
	var all []string
	for _, e := range events {
		all = append(all, e.Verb+" "+e.Resource+" "+e.Name)
	}
	return all
}

func TestLife(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	publish(g, "other", "1.0.0")
	one.label(g, "life=yes")
	two.label(g, "life=yes")
	g.Expect(env.Apply(ctx, simple("life", "1.0.0", `  valuesTemplate: 'who: {{ .Cluster.metadata.labels.who | default .Cluster.metadata.name }}'`))).To(Succeed())
	if !t.Run("installed", func(t *testing.T) {
		g := NewWithT(t)
		one.says(g, "life", "life", "who", "one")
		two.says(g, "life", "life", "who", "two")
		g.Eventually(func(g Gomega) { isReady(g, "life") }).Should(Succeed())
	}) {
		return
	}
	t.Run("a change of one Cluster writes its values, and nothing else", func(t *testing.T) {
		g := NewWithT(t)
		before := two.releases(g, "life")
		since := time.Now()
		one.label(g, "who=me")
		one.says(g, "life", "life", "who", "me")
		// The object that the agent reads stays unchanged until the agent reads another one.
		g.Eventually(func(g Gomega) {
			g.Expect(writes(g, since)).To(ConsistOf("create configmaps hcp-life.for.one.1", HavePrefix("patch bundles hcp-life-"), "patch helmreleaseproxies life-one", "delete configmaps hcp-life.for.one"))
		}).Should(Succeed())
		g.Expect(two.releases(g, "life")).To(Equal(before))
	})
	t.Run("another version", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "life", `{"spec":{"version":"1.1.0"}}`)
		one.says(g, "life", "life", "version", "1.1.0")
		two.says(g, "life", "life", "version", "1.1.0")
	})
	t.Run("deselected: uninstalled there, and nowhere else", func(t *testing.T) {
		g := NewWithT(t)
		two.label(g, "life=no")
		two.says(g, "life", "life", "who", "")
		g.Eventually(func(g Gomega) { g.Expect(two.releases(g, "life")).To(BeEmpty()) }).Should(Succeed())
		one.says(g, "life", "life", "who", "me")
		out, err := two.kubectl("get", "namespace", "life", "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.TrimSpace(out)).To(Equal("namespace/life"), "the namespace stays")
	})
	t.Run("selected again: installed again", func(t *testing.T) {
		g := NewWithT(t)
		two.label(g, "life=yes")
		two.says(g, "life", "life", "who", "two")
	})
	t.Run("another chart", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "life", `{"spec":{"chartName":"other","version":"1.0.0"}}`)
		one.says(g, "life", "life", "chart", "other")
		two.says(g, "life", "life", "chart", "other")
	})
	t.Run("another name of the release", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "life", `{"spec":{"releaseName":"renamed"}}`)
		one.says(g, "life", "renamed", "chart", "other")
		one.says(g, "life", "life", "chart", "")
	})
	t.Run("another namespace", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "life", `{"spec":{"namespace":"moved"}}`)
		one.says(g, "moved", "renamed", "chart", "other")
		one.says(g, "life", "renamed", "chart", "")
	})
	t.Run("deleted: uninstalled", func(t *testing.T) {
		g := NewWithT(t)
		deleteProxy(g, team, "life")
		for _, its := range []cluster{one, two} {
			its.says(g, "moved", "renamed", "chart", "")
		}
		g.Eventually(func(g Gomega) {
			g.Expect(made(g, "life", "bundles.fleet.cattle.io,configmaps,secrets,hrp")).To(BeEmpty())
		}).Should(Succeed())
	})
}

func TestOneFails(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	one.label(g, "fails=yes")
	two.label(g, "fails=yes")
	_, err := env.KubectlInput(ctx, simple("fails", "1.0.0", `  valuesTemplate: 'who: {{ .Cluster.metadata'`), "apply", "-f", "-")
	g.Expect(err).To(MatchError(ContainSubstring("spec.valuesTemplate: Invalid value")))
	g.Expect(err).To(MatchError(ContainSubstring("unclosed action")))
	g.Expect(env.Apply(ctx, simple("fails", "1.0.0", `  valuesTemplate: 'who: {{ if eq .Cluster.metadata.name "one" }}{{ fail "no" }}{{ end }}{{ .Cluster.metadata.name }}'`))).To(Succeed())
	two.says(g, "fails", "fails", "who", "two")
	g.Eventually(func(g Gomega) {
		its := proxy(g, "fails")
		g.Expect(told(its)).To(And(ContainSubstring("team/one: valuesTemplate:1:48: executing"), Not(ContainSubstring("team/two"))))
	}).Should(Succeed())
	deleteProxy(g, team, "fails")
}

func TestSecretValues(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	one.label(g, "secretive=yes")
	secret := func(password string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: team, name: values}, stringData: {values.yaml: 'password: %s'}}", password)
	}
	g.Expect(env.Apply(ctx, secret("sesame-7531"))).To(Succeed())
	g.Expect(env.Apply(ctx, simple("secretive", "1.0.0", `  valuesFrom: [{kind: Secret, name: values}]
  valuesTemplate: 'who: {{ .Cluster.metadata.name }}'`))).To(Succeed())
	one.says(g, "secretive", "secretive", "password", "c2VzYW1lLTc1MzE=")
	one.says(g, "secretive", "secretive", "who", "one")
	g.Expect(env.Apply(ctx, secret("sesame-7532"))).To(Succeed())
	one.says(g, "secretive", "secretive", "password", "c2VzYW1lLTc1MzI=")
	// Only Secrets contain the password: no other object, no event, no log.
	out, err := env.Kubectl(ctx, "api-resources", "--verbs=list", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	kinds := slices.DeleteFunc(strings.Fields(out), func(kind string) bool { return kind == "secrets" })
	out, err = env.Kubectl(ctx, "get", strings.Join(kinds, ","), "-A", "-o", "yaml", "--ignore-not-found")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(out)).To(BeNumerically(">", 100_000))
	for _, trace := range []string{"sesame", "c2VzYW1l"} {
		g.Expect(strings.Contains(out, trace)).To(BeFalse(), "%q is in an object that is no Secret", trace)
	}
	g.Expect(env.LogTail("muster-helm")).NotTo(ContainSubstring("sesame"))
	deleteProxy(g, team, "secretive")
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "-n", team, "get", "secrets", "hcp-secretive.for.one", "--ignore-not-found", "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(BeEmpty())
	}).Should(Succeed())
}

func TestInstallOnce(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	one.label(g, "once=yes")
	g.Expect(env.Apply(ctx, simple("once", "1.0.0", `  reconcileStrategy: InstallOnce
  valuesTemplate: 'who: {{ .Cluster.metadata.labels.who | default "one" }}'`))).To(Succeed())
	one.says(g, "once", "once", "version", "1.0.0")
	g.Eventually(func(g Gomega) {
		isReady(g, "once")
		out, err := env.Kubectl(ctx, "-n", team, "get", "bundles.fleet.cattle.io", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=once", "-o", "jsonpath={.items[*].spec.paused}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(Equal("true"))
	}).Should(Succeed())
	before := one.releases(g, "once")
	g.Expect(before).NotTo(BeEmpty())
	t.Run("its strategy cannot be changed", func(t *testing.T) {
		g := NewWithT(t)
		_, err := env.Kubectl(ctx, "-n", team, "patch", "hcp", "once", "--type=merge", "-p", `{"spec":{"reconcileStrategy":"Continuous"}}`)
		g.Expect(err).To(MatchError(ContainSubstring("field is immutable")))
	})
	t.Run("another version, other values, a deletion there: nothing", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "once", `{"spec":{"version":"1.1.0"}}`)
		one.label(g, "who=else")
		_, err := one.kubectl("-n", "once", "delete", "configmap", "once-values")
		g.Expect(err).NotTo(HaveOccurred())
		g.Consistently(func(g Gomega) { g.Expect(one.data(g, "once", "once-values", "version")).To(BeEmpty()) }).
			WithTimeout(20 * time.Second).Should(Succeed())
		g.Expect(one.releases(g, "once")).To(Equal(before))
	})
	t.Run("deleted: the release stays", func(t *testing.T) {
		g := NewWithT(t)
		deleteProxy(g, team, "once")
		g.Eventually(func(g Gomega) {
			out, err := env.Kubectl(ctx, "get", "bundles.fleet.cattle.io,bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=once", "-o", "name")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(BeEmpty())
		}).Should(Succeed())
		g.Expect(one.releases(g, "once")).To(Equal(before))
	})
}

func TestDrift(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	one.label(g, "drifts=yes")
	g.Expect(env.Apply(ctx, simple("drifts", "1.0.0", "  correctDrift: true\n  valuesTemplate: 'who: me'"))).To(Succeed())
	one.says(g, "drifts", "drifts", "who", "me")
	g.Eventually(func(g Gomega) { isReady(g, "drifts") }).Should(Succeed())
	_, err := one.kubectl("-n", "drifts", "patch", "configmap", "drifts-values", "--type=merge", "-p", `{"data":{"who":"somebody"}}`)
	g.Expect(err).NotTo(HaveOccurred())
	one.says(g, "drifts", "drifts", "who", "me")
	deleteProxy(g, team, "drifts")
}

// A program such as CAREN writes one HelmChartProxy for each Cluster, and waits.
func TestProgram(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	uid, err := env.Kubectl(ctx, "-n", team, "get", "clusters.cluster.x-k8s.io", "one", "-o", "jsonpath={.metadata.uid}")
	g.Expect(err).NotTo(HaveOccurred())
	name := "cni-of-a-cluster-with-a-long-name-0f8fad5b-d9cb-469f-a165-70867728950e"
	object := fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata:
  namespace: %s
  name: %s
  ownerReferences: [{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: one, uid: %s}]
spec:
  clusterSelector: {matchLabels: {cluster.x-k8s.io/cluster-name: one}}
  repoURL: %s
  chartName: simple
  version: 1.0.0
  namespace: kube-system
  credentials: {secret: {name: repository}, key: config.json}
  tlsConfig: {caSecret: {name: repository}}
  valuesTemplate: 'who: {{ .Cluster.metadata.name }}'
`, team, name, uid, charts.URL)
	one.label(g, "cluster.x-k8s.io/cluster-name=one")
	for range 2 {
		_, err = env.KubectlInput(ctx, object, "apply", "--server-side", "--force-conflicts", "--field-manager=program", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(func(g Gomega) { isReady(g, name) }).Should(Succeed())
	g.Expect(proxy(g, name).Status.MatchingClusters).To(HaveLen(1))
	deleteProxy(g, team, name)
}
