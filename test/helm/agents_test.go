package helm

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/muster-fleet/muster/test/helm/repository"
)

// byAgents is a HelmChartProxy whose chart Fleet's agents download.
func byAgents(repoURL, version string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: agents}
spec:
  clusterSelector: {matchLabels: {agents: "yes"}}
  repoURL: %s
  chartName: simple
  version: %q
  namespace: agents
  download: Agent
  credentials: {secret: {name: agents}, key: config.json}
  tlsConfig: {caSecret: {name: agents}}
  valuesTemplate: 'who: {{ .Cluster.metadata.labels.who | default .Cluster.metadata.name }}'
`, team, repoURL, version)
}

// uid returns the UID of the release's ConfigMap, which changes if the release was uninstalled meanwhile.
func (c cluster) uid(g Gomega) string {
	out, err := c.kubectl("-n", "agents", "get", "configmap", "agents-values", "-o", "jsonpath={.metadata.uid}")
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

// made lists the objects with the label of a HelmChartProxy.
func made(g Gomega, name, kinds string) string {
	out, err := env.Kubectl(ctx, "get", kinds, "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io="+name, "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}

// downloads returns Agent or Manager: the one that downloads the chart of a HelmChartProxy.
func downloads(g Gomega, name string) string {
	out, err := env.Kubectl(ctx, "get", "bundles.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io="+name, "-o", "jsonpath={.items[*].spec.helmOpOptions}")
	g.Expect(err).NotTo(HaveOccurred())
	if out == "" {
		return "Manager"
	}
	return "Agent"
}

// followed waits until the HelmChartProxy is ready after a change.
func followed(g Gomega) {
	g.Eventually(func(g Gomega) { isReady(g, "agents") }).Should(Succeed())
}

func TestAgents(t *testing.T) {
	g := NewWithT(t)
	own := repository.New()
	t.Cleanup(own.Close)
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0", "1.3.0"} {
		g.Expect(own.Publish("simple", version, map[string]string{"values.yaml": simpleTemplate})).To(Succeed())
	}
	access := own.Secret()
	g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: agents}, data: {config.json: %s, ca.crt: %s}}",
		team, base64.StdEncoding.EncodeToString(access["config.json"]), base64.StdEncoding.EncodeToString(access["ca.crt"])))).To(Succeed())
	one.label(g, "agents=yes")
	two.label(g, "agents=yes")
	one.label(g, "who-")
	t.Cleanup(func() { one.label(NewWithT(t), "who-") }) // Other tests begin without the label.
	begin := time.Now()
	g.Expect(env.Apply(ctx, byAgents(own.URL, "1.0.x"))).To(Succeed())
	if !t.Run("each agent downloads the chart, and installs it with the values of its Cluster", func(t *testing.T) {
		g := NewWithT(t)
		one.says(g, "agents", "agents", "who", "one")
		two.says(g, "agents", "agents", "who", "two")
		one.says(g, "agents", "agents", "version", "1.0.0")
		followed(g)
		t.Logf("ready %s after it was applied", time.Since(begin).Round(100*time.Millisecond))
		g.Expect(one.releases(g, "agents")).To(HavePrefix("sh.helm.release.v1.agents.v"))
		g.Expect(downloads(g, "agents")).To(Equal("Agent"))
		paths, refused := own.Asked()
		g.Expect(strings.Count(strings.Join(paths, " "), "simple-1.0.0.tgz")).To(BeNumerically(">=", 2), "%v", paths)
		g.Expect(refused).To(BeZero())
		isWhole(g, "agents")
	}) {
		return
	}
	before := [2]string{one.uid(g), two.uid(g)}
	steps(t, own)
	t.Run("none of these changes has uninstalled anything", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect([2]string{one.uid(g), two.uid(g)}).To(Equal(before))
	})
	ends(t)
}

// steps changes the release, and switches the download between Muster and the agents.
func steps(t *testing.T, own *repository.Repository) {
	t.Run("a change of one Cluster writes its values, and nothing else", func(t *testing.T) {
		g := NewWithT(t)
		since := time.Now()
		one.label(g, "who=me")
		one.says(g, "agents", "agents", "who", "me")
		// The object that the agent reads stays as it is, until the agent reads another one.
		g.Eventually(func(g Gomega) {
			g.Expect(writes(g, since)).To(ConsistOf("create configmaps hcp-agents.for.one.1", HavePrefix("patch bundles hcp-agents-"), "patch helmreleaseproxies agents-one", "delete configmaps hcp-agents.for.one"))
		}).Should(Succeed())
	})
	for _, change := range []struct{ name, version, download string }{
		{"another version", "1.1.0", "Agent"},
		{"the manager downloads the next", "1.2.0", "Manager"},
		{"and the agents again", "1.3.0", "Agent"},
	} {
		t.Run(change.name, func(t *testing.T) {
			g := NewWithT(t)
			patch(g, "agents", fmt.Sprintf(`{"spec":{"version":%q,"download":%q}}`, change.version, change.download))
			for _, its := range []cluster{one, two} {
				its.says(g, "agents", "agents", "version", change.version)
			}
			followed(g)
			g.Expect(downloads(g, "agents")).To(Equal(change.download))
			if change.download == "Manager" {
				g.Eventually(func(g Gomega) { g.Expect(made(g, "agents", "secrets")).To(BeEmpty()) }).Should(Succeed())
			}
			paths, refused := own.Asked()
			count := strings.Count(strings.Join(paths, " "), "simple-"+change.version+".tgz")
			if change.download == "Manager" {
				g.Expect(count).To(Equal(1), "%v", paths)
			} else {
				g.Expect(count).To(BeNumerically(">=", 2), "%v", paths)
			}
			g.Expect(refused).To(BeZero())
		})
	}
}

// ends deselects Clusters, and deletes objects.
func ends(t *testing.T) {
	t.Run("a missing chart is not passed to Fleet, and a deselected Cluster loses the release", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "agents", `{"spec":{"version":"9.9.9"}}`)
		g.Eventually(func(g Gomega) {
			condition := meta.FindStatusCondition(proxy(g, "agents").Status.Conditions, "Ready")
			g.Expect(condition.Reason + " " + condition.Message).To(MatchRegexp("^HelmReleaseProxyCreationFailed repository .* has no version \"9.9.9\""))
		}).Should(Succeed())
		two.label(g, "agents=no")
		two.says(g, "agents", "agents", "who", "")
		one.says(g, "agents", "agents", "version", "1.3.0")
	})
	t.Run("selected again", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "agents", `{"spec":{"version":"1.3.0"}}`)
		two.label(g, "agents=yes")
		two.says(g, "agents", "agents", "who", "two")
		followed(g)
	})
	t.Run("a deleted Bundle is recreated", func(t *testing.T) {
		g := NewWithT(t)
		name := strings.TrimPrefix(made(g, "agents", "bundles.fleet.cattle.io"), "bundle.fleet.cattle.io/")
		_, err := env.Kubectl(ctx, "-n", team, "delete", "bundles.fleet.cattle.io", name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) {
			g.Expect(made(g, "agents", "bundles.fleet.cattle.io")).NotTo(BeEmpty())
			isReady(g, "agents")
			one.says(g, "agents", "agents", "who", "me")
		}).Should(Succeed())
	})
	t.Run("deleted: uninstalled, and nothing is left", func(t *testing.T) {
		g := NewWithT(t)
		deleteProxy(g, team, "agents")
		for _, its := range []cluster{one, two} {
			its.says(g, "agents", "agents", "who", "")
		}
		g.Eventually(func(g Gomega) {
			g.Expect(made(g, "agents", "bundles.fleet.cattle.io,configmaps,secrets,hrp")).To(BeEmpty())
		}).Should(Succeed())
	})
}

// TestAgentsFence: the cluster limits what the program's account may write, even with a stolen token.
func TestAgentsFence(t *testing.T) {
	const account = "--as=system:serviceaccount:muster-system:muster-helm"
	bundle := func(namespace, name, spec string) string {
		return fmt.Sprintf(`{apiVersion: fleet.cattle.io/v1alpha1, kind: Bundle, metadata: {namespace: %s, name: %s, labels: {
			app.kubernetes.io/managed-by: muster, helmchartproxy-name.fleet.addons.cluster.x-k8s.io: any}}, spec: %s}`, namespace, name, spec)
	}
	const helm = `helm: {repo: "https://charts.example.com", chart: a, version: 1.0.0}`
	for name, test := range map[string]struct{ object, refused string }{
		"another name":          {bundle(team, "any", "{"+helm+", targets: [{clusterName: one}]}"), "may touch only Bundles with the labels"},
		"a selector":            {bundle(team, "hcp-any", "{"+helm+", targets: [{clusterSelector: {}}]}"), "may target clusters by clusterName only"},
		"somebody's Secret":     {bundle(team, "hcp-any", "{"+helm+", helmOpOptions: {helmOpSecretName: repository}, targets: [{clusterName: one}]}"), "may name only Secrets hcp-"},
		"a ServiceAccount":      {bundle(team, "hcp-any", "{"+helm+", targets: [{clusterName: one, serviceAccount: admin}]}"), "may not name a ServiceAccount"},
		"fleet-local":           {bundle("fleet-local", "hcp-any", "{"+helm+", targets: [{clusterName: local}]}"), "may write nothing in fleet-local"},
		"its own Secret":        {bundle(team, "hcp-any", "{"+helm+", helmOpOptions: {helmOpSecretName: hcp-any.for-agents-01234567}, targets: [{clusterName: one}]}"), ""},
		"someone else's Secret": {fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: hcp-any.for-agents-01234567, labels: {app.kubernetes.io/managed-by: muster, helmchartproxy-name.fleet.addons.cluster.x-k8s.io: any}}, type: Opaque}", team), "may touch only Secrets of the types"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := env.KubectlInput(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: fleet-local}}", "apply", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred())
			_, err = env.KubectlInput(ctx, test.object, account, "create", "--dry-run=server", "-f", "-")
			if test.refused == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.refused)))
		})
	}
}
