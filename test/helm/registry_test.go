package helm

import (
	"encoding/base64"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/helm/repository"
)

// oci is a registry with the chart simple.
type oci struct{ *repository.Registry }

func startRegistry(t *testing.T) oci {
	registry, err := repository.StartRegistry(ctx, env)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(registry.Close)
	return oci{registry}
}

func (r oci) publish(g Gomega, version string) string {
	digest, err := r.Publish(ctx, "simple", version, map[string]string{"values.yaml": simpleTemplate})
	g.Expect(err).NotTo(HaveOccurred())
	return digest
}

// downloads returns how often clients downloaded a blob.
func (r oci) downloads(g Gomega, digest string) int {
	log, err := os.ReadFile(env.LogPath("registry"))
	g.Expect(err).NotTo(HaveOccurred())
	return len(regexp.MustCompile(`GET /v2/charts/simple/blobs/`+regexp.QuoteMeta(digest)).FindAll(log, -1))
}

func (r oci) secret(name string, config []byte) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: %s}, data: {config.json: %s, ca.crt: %s}}",
		team, name, base64.StdEncoding.EncodeToString(config), base64.StdEncoding.EncodeToString(r.CA))
}

func (r oci) proxy(name, download string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s}
spec:
  clusterSelector: {matchLabels: {%[2]s: "yes"}}
  repoURL: %s
  chartName: simple
  version: 1.0.x
  namespace: %[2]s
  download: %[4]s
  credentials: {secret: {name: registry}, key: config.json}
  tlsConfig: {caSecret: {name: registry}}
  valuesTemplate: 'who: {{ .Cluster.metadata.name }}'
`, team, name, r.URL(), download)
}

// TestRegistry installs a chart from an OCI registry with a password and a private authority.
func TestRegistry(t *testing.T) {
	g := NewWithT(t)
	r := startRegistry(t)
	digests := map[string]string{}
	for _, version := range []string{"1.0.0", "1.1.0"} {
		digests[version] = r.publish(g, version)
	}
	g.Expect(env.Apply(ctx, r.secret("registry", r.Secret()["config.json"]))).To(Succeed())
	for _, its := range []struct {
		download     string
		isDownloaded func(before, after int) bool
	}{
		{"Manager", func(before, after int) bool { return after == before+1 }},
		{"Agent", func(before, after int) bool { return after >= before+2 }},
	} {
		t.Run(its.download, func(t *testing.T) {
			g := NewWithT(t)
			name := "oci-" + strings.ToLower(its.download)
			both := []cluster{one, two}
			for _, its := range both {
				its.label(g, name+"=yes")
			}
			before := r.downloads(g, digests["1.0.0"])
			g.Expect(env.Apply(ctx, r.proxy(name, its.download))).To(Succeed())
			for _, on := range both {
				on.says(g, name, name, "who", on.name)
				on.says(g, name, name, "version", "1.0.0")
				g.Expect(on.releases(g, name)).To(HavePrefix("sh.helm.release.v1." + name + ".v"))
			}
			g.Eventually(func(g Gomega) { isReady(g, name) }).Should(Succeed())
			g.Expect(downloads(g, name)).To(Equal(its.download))
			after := r.downloads(g, digests["1.0.0"])
			g.Expect(its.isDownloaded(before, after)).To(BeTrue(), "downloaded %d times before, %d after", before, after)

			before = r.downloads(g, digests["1.1.0"])
			patch(g, name, `{"spec":{"version":"1.1.0"}}`)
			for _, on := range both {
				on.says(g, name, name, "version", "1.1.0")
			}
			after = r.downloads(g, digests["1.1.0"])
			g.Expect(its.isDownloaded(before, after)).To(BeTrue(), "downloaded %d times before, %d after", before, after)

			patch(g, name, `{"spec":{"version":"9.9.9"}}`)
			g.Eventually(func(g Gomega) {
				g.Expect(told(proxy(g, name))).To(ContainSubstring("HelmReleaseProxyCreationFailed: " + r.URL() + `/simple has no version "9.9.9"`))
			}).Should(Succeed())
			deleteProxy(g, team, name)
			for _, on := range both {
				on.says(g, name, name, "who", "")
			}
			g.Eventually(func(g Gomega) {
				g.Expect(made(g, name, "bundles.fleet.cattle.io,configmaps,secrets,hrp")).To(BeEmpty())
			}).Should(Succeed())
		})
	}
	t.Run("a wrong password", func(t *testing.T) { r.refuses(t) })
}

// refuses checks that the registry rejects a wrong password, and that the condition reports this without the
// password.
func (r oci) refuses(t *testing.T) {
	g := NewWithT(t)
	one.label(g, "oci-refused=yes")
	g.Expect(env.Apply(ctx, r.secret("wrong", repository.Config(r.Address, "wrong-7531")))).To(Succeed())
	object := strings.Replace(r.proxy("oci-refused", "Agent"), "secret: {name: registry}", "secret: {name: wrong}", 1)
	g.Expect(env.Apply(ctx, object)).To(Succeed())
	g.Eventually(func(g Gomega) {
		says := told(proxy(g, "oci-refused"))
		g.Expect(says).To(And(ContainSubstring("HelmReleaseProxyCreationFailed"), ContainSubstring("401"), Not(ContainSubstring("wrong-7531"))))
	}).Should(Succeed())
	g.Expect(made(g, "oci-refused", "bundles.fleet.cattle.io")).To(BeEmpty())
	deleteProxy(g, team, "oci-refused")
}

// TestLeaky deploys a chart that fails with a password in its message: Fleet repeats the message, and Muster
// does not.
func TestLeaky(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	g.Expect(charts.Publish("leaky", "1.0.0", map[string]string{"a.yaml": `{{ fail .Values.password }}`})).To(Succeed())
	one.label(g, "leaky=yes")
	t.Cleanup(func() { one.label(NewWithT(t), "leaky-") })
	g.Expect(env.Apply(ctx, "{apiVersion: v1, kind: Secret, metadata: {namespace: team, name: leaky}, stringData: {values.yaml: 'password: sesame-8642'}}")).To(Succeed())
	g.Expect(env.Apply(ctx, simple("leaky", "1.0.0", "  valuesFrom: [{kind: Secret, name: leaky}]\n"))).To(Succeed())
	patch(g, "leaky", `{"spec":{"chartName":"leaky"}}`)
	g.Eventually(func(g Gomega) {
		g.Expect(told(proxy(g, "leaky"))).To(MatchRegexp("HelmReleaseProxiesReady=False HelmInstallOrUpgradeFailed: team/one: .*see BundleDeployment cluster-team-one-[0-9a-f]+/hcp-leaky"))
		out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=leaky", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("sesame-8642"), "Fleet says it")
	}).Should(Succeed())
	says := func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "hcp,hrp,events.events.k8s.io", "-A", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("see BundleDeployment"))
		g.Expect(out).NotTo(ContainSubstring("sesame-8642"))
		g.Expect(env.LogTail("muster-helm")).NotTo(ContainSubstring("sesame-8642"))
	}
	says(g)
	patch(g, "leaky", `{"spec":{"valuesFrom":null,"valuesTemplate":"password: public"}}`)
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=leaky", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		says(g)
		g.Expect(out).To(And(ContainSubstring("public"), Not(ContainSubstring("sesame-8642"))), "the agent has tried again")
	}).Should(Succeed())
	deleteProxy(g, team, "leaky")
}
