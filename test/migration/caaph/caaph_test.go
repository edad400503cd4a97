package caaph

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// template of the chart: its version, and the values that CAAPH has rendered.
const template = `
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-values"}
data: {version: {{ .Chart.Version | quote }}, who: {{ .Values.who | default "nobody" | quote }}}
`

// page runs the commands of the page.
type page struct {
	*fixture.Shell
	commands map[string]string
	helm     string
}

func newPage(t *testing.T, g Gomega) *page {
	all, err := fixture.Commands("migrate-from-caaph.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all["caaph"]).To(HaveLen(5))
	shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	for _, program := range []string{"syncer", "webhook"} {
		_, err = fixture.Program(".", "github.com/muster-fleet/muster/cmd/"+program, shell.Tools)
		g.Expect(err).NotTo(HaveOccurred())
	}
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.CopyFS(filepath.Join(shell.Home, "manifests"), os.DirFS(filepath.Join(root, "manifests")))).To(Succeed())
	return &page{Shell: shell, commands: all["caaph"], helm: helm3(g, t.TempDir())}
}

func (p *page) run(t *testing.T, g Gomega, step string) {
	t.Helper()
	g.Expect(p.commands).To(HaveKey(step))
	_, out, err := p.Run(ctx, env.Kubeconfig, p.commands[step])
	t.Logf("%s\n%s", strings.TrimSpace(p.commands[step]), out)
	g.Expect(err).NotTo(HaveOccurred())
}

// The page, step by step, from what CAAPH leaves, and back.
func TestCAAPH(t *testing.T) {
	g := NewWithT(t)
	steps := newPage(t, g)
	leave(g, steps.helm)
	before := look(g)
	g.Expect(before).To(HaveLen(len(releases)))

	ok := t.Run("saved, checked and rendered: the same values", func(t *testing.T) {
		g := NewWithT(t)
		steps.run(t, g, "save")
		steps.run(t, g, "render")
		rendered, err := os.ReadFile(filepath.Join(steps.Home, "rendered.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, cluster := range clusters {
			g.Expect(string(rendered)).To(ContainSubstring("who: " + cluster))
		}
	}) && t.Run("migrated: adopted in place", func(t *testing.T) {
		g := NewWithT(t)
		steps.run(t, g, "stop")
		steps.run(t, g, "install")
		g.Expect(env.StartComponent(ctx, "helm")).To(Succeed()) // As a kubelet would.
		for _, proxy := range []string{"web", "named", "once"} {
			isReady(g, proxy)
		}
		adopted(g, before)
		mirrored(g)
	}) && t.Run("a change reaches the release of a generated name", func(t *testing.T) {
		g := NewWithT(t)
		_, err := env.Kubectl(ctx, "-n", team, "patch", "hcp", "web", "--type=merge", "-p", `{"spec":{"version":"1.1.0"}}`)
		g.Expect(err).NotTo(HaveOccurred())
		for _, its := range releases[:2] {
			g.Eventually(func(g Gomega) { g.Expect(its.look(g).version).To(Equal("1.1.0")) }).Should(Succeed())
			g.Expect(its.look(g).uid).To(Equal(before[its].uid))
		}
		isReady(g, "web")
	}) && t.Run("the CRD is CAAPH's: left alone, and said", testLeftAlone)
	if !ok {
		return
	}
	t.Run("back: nothing is uninstalled, and the releases are found", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(env.Stop(ctx, "muster-charts")).To(Succeed()) // As a kubelet would.
		steps.run(t, g, "back")
		g.Eventually(func() (string, error) {
			return env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io", "-o", "name")
		}).Should(BeEmpty())
		stay(g, before)
		g.Expect(env.Apply(ctx, crds(g)+webhooks())).To(Succeed())
		for _, its := range releases {
			name, err := env.Kubectl(ctx, "-n", team, "get", "hrp", its.mirrorName(), "-o", "jsonpath={.spec.releaseName}")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(name).To(Equal(its.name))
			its.carryOut(g, steps.helm, "1.1.0")
			g.Expect(its.look(g).version).To(Equal("1.1.0"))
		}
		stay(g, before)
	})
}

// leave makes what CAAPH leaves: objects, and releases that its Helm has installed.
func leave(g Gomega, helm string) {
	for _, version := range []string{"1.0.0", "1.1.0"} {
		g.Expect(charts.Publish("simple", version, map[string]string{"values.yaml": template})).To(Succeed())
	}
	secret, err := json.Marshal(charts.Secret())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: repository}, data: %s}", team, secret))).To(Succeed())
	for _, cluster := range clusters { // The page asks for it.
		_, err = env.Kubectl(ctx, "-n", team, "wait", "clusters.cluster.x-k8s.io/"+cluster, "--for=condition=FleetImported", "--timeout=180s")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(env.Apply(ctx, installation+crds(g))).To(Succeed())
	g.Eventually(func() error { return env.Apply(ctx, proxies()) }).Should(Succeed())
	for _, its := range releases {
		its.carryOut(g, helm, its.version)
		uid, err := env.Kubectl(ctx, "-n", team, "get", "helmchartproxies", its.proxy, "-o", "jsonpath={.metadata.uid}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(env.Apply(ctx, its.mirror(uid))).To(Succeed())
		_, err = env.Kubectl(ctx, "-n", team, "patch", "helmreleaseproxies", its.mirrorName(), "--subresource=status", "--type=merge",
			"-p", `{"status":{"status":"deployed","revision":1,"observedGeneration":1}}`)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(env.Apply(ctx, webhooks())).To(Succeed())
}

// state is how a release is on its cluster.
type state struct {
	// uid tells whether what is in it was uninstalled meanwhile.
	uid, version, who string
	revision          int
}

func (r release) kubectl(g Gomega, args ...string) string {
	out, err := env.HostedKubectl(ctx, team, r.cluster, append([]string{"-n", "apps", "get"}, args...)...)
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

func (r release) look(g Gomega) state {
	var content struct {
		Metadata struct{ UID string }
		Data     map[string]string
	}
	g.Expect(json.Unmarshal([]byte(r.kubectl(g, "configmap", r.name+"-values", "-o", "json")), &content)).To(Succeed())
	deployed := strings.Fields(r.kubectl(g, "secrets", "-l", "owner=helm,status=deployed,name="+r.name, "-o", "jsonpath={.items[*].metadata.labels.version}"))
	g.Expect(deployed).To(HaveLen(1), "revisions of %s that are deployed", r.name)
	its := state{uid: content.Metadata.UID, version: content.Data["version"], who: content.Data["who"]}
	_, err := fmt.Sscan(deployed[0], &its.revision)
	g.Expect(err).NotTo(HaveOccurred())
	return its
}

func look(g Gomega) map[release]state {
	all := map[release]state{}
	for _, its := range releases {
		all[its] = its.look(g)
	}
	return all
}

// stay looks for some time whether what is deployed is the same objects.
func stay(g Gomega, before map[release]state) {
	g.Consistently(func(g Gomega) {
		for its, now := range look(g) {
			g.Expect(now.uid).To(Equal(before[its].uid), its.name)
		}
	}).WithTimeout(10 * time.Second).WithPolling(time.Second).Should(Succeed())
}

func isReady(g Gomega, proxy string) {
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "-n", team, "get", "hcp", proxy, "-o", "jsonpath={.metadata.generation} {.status.observedGeneration} {.status.conditions[?(@.type=='Ready')].status} {.status.conditions}")
		g.Expect(err).NotTo(HaveOccurred())
		fields := strings.Fields(out)
		g.Expect(len(fields)).To(BeNumerically(">", 2), out)
		g.Expect(fields[0]+" "+fields[2]).To(Equal(fields[1]+" True"), out)
	}).WithTimeout(4 * time.Minute).Should(Succeed())
}

// adopted expects each release to be the one that was there, one revision on, with the same values; what
// is installed once, as it was.
func adopted(g Gomega, before map[release]state) {
	for its, now := range look(g) {
		want := before[its]
		g.Expect(now.who).To(Equal(its.cluster))
		if !its.once {
			g.Expect(now.revision).To(BeNumerically(">", want.revision), its.name)
			now.revision = want.revision
		}
		g.Expect(now).To(Equal(want), its.name)
	}
	for _, cluster := range clusters {
		var want []string
		for _, its := range releases {
			if its.cluster == cluster {
				want = append(want, its.name)
			}
		}
		names := release{cluster: cluster}.kubectl(g, "secrets", "-l", "owner=helm", "-o", "jsonpath={.items[*].metadata.labels.name}")
		g.Expect(want).To(ContainElements(strings.Fields(names)), "releases on %s", cluster)
	}
}

// mirrored expects the HelmReleaseProxies to be those that were there, without what CAAPH waits for.
func mirrored(g Gomega) {
	for _, its := range releases {
		generated := ""
		if its.generated {
			generated = "true"
		}
		g.Eventually(func(g Gomega) {
			out, err := env.Kubectl(ctx, "-n", team, "get", "hrp", its.mirrorName(), "-o",
				"jsonpath={.spec.releaseName} values={.spec.values} finalizers={.metadata.finalizers} {.metadata.ownerReferences[0].name} "+
					`generated={.metadata.annotations.helmreleaseproxy\.addons\.cluster\.x-k8s\.io/is-release-name-generated}`)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(Equal(its.name + " values= finalizers=[\"fleet.addons.cluster.x-k8s.io/helm\"] " + its.proxy + " generated=" + generated))
		}).Should(Succeed())
	}
	out, err := env.Kubectl(ctx, "-n", team, "get", "hcp,hrp", "-o", "jsonpath={.items[*].metadata.finalizers}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).NotTo(ContainSubstring(".addons.cluster.x-k8s.io\""), "helmchartproxy.addons.cluster.x-k8s.io and helmreleaseproxy.addons.cluster.x-k8s.io wait for CAAPH")
	out, err = env.Kubectl(ctx, "-n", team, "get", "hrp", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(out)).To(HaveLen(len(releases)))
}

func testLeftAlone(t *testing.T) {
	g := NewWithT(t)
	const crd = "helmchartproxies.addons.cluster.x-k8s.io"
	_, err := env.Kubectl(ctx, "label", "crd", crd, "app.kubernetes.io/managed-by-")
	g.Expect(err).NotTo(HaveOccurred())
	leftAlone := func() (string, error) {
		return env.Kubectl(ctx, "-n", team, "get", "hcp", "web", "-o", "jsonpath={.status.conditions[?(@.type=='LeftAlone')].message}")
	}
	g.Eventually(leftAlone).Should(ContainSubstring("CustomResourceDefinition " + crd + " has no label app.kubernetes.io/managed-by=muster"))
	_, err = env.Kubectl(ctx, "label", "crd", crd, "app.kubernetes.io/managed-by=muster")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(leftAlone).Should(BeEmpty())
}
