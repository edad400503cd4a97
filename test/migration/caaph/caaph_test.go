package caaph

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// template is the HelmChartProxy's template: the chart's version, and its values.
const template = `
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-values"}
data: {version: {{ .Chart.Version | quote }}, who: {{ .Values.who | default "nobody" | quote }}}
`

// page runs the commands of docs/migrate-from-caaph.md.
type page struct {
	*fixture.Shell
	commands map[string]string
}

func newPage(t *testing.T, g Gomega) *page {
	all, err := fixture.Commands("migrate-from-caaph.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all["caaph"]).To(HaveLen(6))
	shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = fixture.Program(".", "github.com/muster-fleet/muster/cmd/kubectl-muster", shell.Tools)
	g.Expect(err).NotTo(HaveOccurred())
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.CopyFS(filepath.Join(shell.Home, "manifests"), os.DirFS(filepath.Join(root, "manifests")))).To(Succeed())
	return &page{Shell: shell, commands: all["caaph"]}
}

func (p *page) run(t *testing.T, g Gomega, step string) {
	t.Helper()
	g.Expect(p.commands).To(HaveKey(step))
	_, out, err := p.Run(ctx, env.Kubeconfig, p.commands[step])
	t.Logf("%s\n%s", strings.TrimSpace(p.commands[step]), out)
	g.Expect(err).NotTo(HaveOccurred())
}

// TestCAAPH follows the page step by step, from a running CAAPH to Muster and back.
func TestCAAPH(t *testing.T) {
	g := NewWithT(t)
	steps, installation := newPage(t, g), manifests(t, g)
	publish(g)
	for _, cluster := range clusters { // The page asks for it.
		kubectl(g, "-n", team, "wait", "clusters.cluster.x-k8s.io/"+cluster, "--for=condition=FleetImported", "--timeout=180s")
	}
	installCAAPH(g, installation)
	install(g)
	releases := listed(g)
	before := observe(g, releases)
	g.Expect(before).To(HaveLen(4))

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
		g.Expect(env.Stop(ctx, controller)).To(Succeed()) // As a kubelet would.
		steps.run(t, g, "install")
		g.Expect(env.StartComponent(ctx, "helm")).To(Succeed()) // As a kubelet would.
		hasReleaseProxies(g, releases)                          // Until then, CAAPH's Ready remains.
		g.Eventually(adopted).WithArguments(before).Should(Succeed())
		for _, proxy := range []string{"web", "named", "once"} {
			isReady(g, proxy)
		}
	}) && t.Run("a change reaches the release of a generated name", func(t *testing.T) {
		g := NewWithT(t)
		change(g, "web", `{"version":"1.1.0","valuesTemplate":"who: {{ .Cluster.metadata.name }}-changed"}`)
		expect(g, before, "web", "1.1.0", "-changed")
		create(g, "later")
		isReady(g, "later")
		g.Expect(listed(g)).To(ContainElement(WithTransform(func(its release) string { return its.name }, Equal("later"))))
	}) && t.Run("the CRD is CAAPH's: not managed, and reported", testNotManaged)
	if !ok {
		return
	}
	releases = listed(g)
	before = observe(g, releases)
	t.Run("back: nothing is uninstalled, and CAAPH continues", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(env.Stop(ctx, "muster-helm")).To(Succeed()) // As a kubelet would.
		steps.run(t, g, "back")
		g.Eventually(func() string {
			return kubectl(g, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io", "-o", "name")
		}).Should(BeEmpty())
		stay(g, before)
		installCAAPH(g, installation)
		isCAAPHs(g)
		g.Expect(listed(g)).To(ConsistOf(releases))
		for proxy := range proxies {
			change(g, proxy, `{"version":"1.2.0"}`)
		}
		expect(g, before, "web", "1.2.0", "-changed")
		expect(g, before, "named", "1.2.0", "")
		expect(g, before, "later", "1.2.0", "")
		expect(g, before, "once", "1.0.0", "")
		steps.run(t, g, "remove")
		change(g, "web", `{"version":"1.3.0"}`)
		expect(g, before, "web", "1.3.0", "-changed")
		stay(g, before)
		g.Expect(listed(g)).To(ConsistOf(releases))
	})
}

// install makes CAAPH install all proxies except later. The proxy of strategy InstallOnce has changed since.
func install(g Gomega) {
	for proxy, count := range map[string]int{"web": 2, "named": 1, "once": 1} {
		g.Eventually(func(g Gomega) {
			create(g, proxy)
			isReady(g, proxy)
			its := slices.DeleteFunc(listed(g), func(its release) bool { return its.proxy != proxy })
			if len(its) != count { // CAAPH makes several for a Cluster when its cache is behind.
				kubectl(g, "-n", team, "delete", "hcp", proxy)
			}
			g.Expect(its).To(HaveLen(count))
		}).Should(Succeed())
	}
	for _, its := range listed(g) {
		now := its.observe(g)
		g.Expect(now).To(Equal(state{uid: now.uid, version: "1.0.0", who: its.cluster, revision: 1}), its.name)
		g.Expect(its.generated).To(Equal(its.proxy == "web"))
		if its.generated {
			g.Expect(its.name).To(MatchRegexp("^simple-[0-9]{10}$"))
		}
	}
	isCAAPHs(g)
	change(g, "once", `{"version":"1.1.0"}`)
	isReady(g, "once")
}

func kubectl(g Gomega, args ...string) string {
	out, err := env.Kubectl(ctx, args...)
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

func change(g Gomega, proxy, spec string) {
	kubectl(g, "-n", team, "patch", "hcp", proxy, "--type=merge", "-p", `{"spec":`+spec+`}`)
}

// expect expects the releases of a HelmChartProxy to change as it asks, in place, and the status to say so.
func expect(g Gomega, before map[release]state, proxy, version, suffix string) {
	for its, was := range before {
		if its.proxy != proxy {
			continue
		}
		g.Eventually(func(g Gomega) {
			now := its.observe(g)
			g.Expect(now).To(Equal(state{uid: was.uid, version: version, who: its.cluster + suffix, revision: now.revision}), its.name)
		}).Should(Succeed())
	}
	isReady(g, proxy)
}

// release is a release on a Cluster, and mirror the name of its HelmReleaseProxy.
type release struct {
	proxy, cluster, name, releaseProxy string
	generated                          bool
}

// listed returns the releases with a HelmReleaseProxy.
func listed(g Gomega) []release {
	var list struct {
		Items []struct {
			Metadata struct {
				Name                string
				Labels, Annotations map[string]string
			}
			Spec struct {
				ClusterRef  struct{ Name string }
				ReleaseName string
			}
		}
	}
	g.Expect(json.Unmarshal([]byte(kubectl(g, "-n", team, "get", "hrp", "-o", "json")), &list)).To(Succeed())
	var all []release
	for _, its := range list.Items {
		all = append(all, release{
			proxy: its.Metadata.Labels["helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name"], cluster: its.Spec.ClusterRef.Name,
			name: its.Spec.ReleaseName, releaseProxy: its.Metadata.Name,
			generated: its.Metadata.Annotations["helmreleaseproxy.addons.cluster.x-k8s.io/is-release-name-generated"] == "true",
		})
	}
	return all
}

// state is the state of a release on its cluster.
type state struct {
	// uid shows whether its objects were uninstalled meanwhile.
	uid, version, who string
	revision          int
}

func (r release) kubectl(g Gomega, args ...string) string {
	out, err := env.HostedKubectl(ctx, team, r.cluster, append([]string{"-n", "apps", "get"}, args...)...)
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

func (r release) observe(g Gomega) state {
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

func observe(g Gomega, releases []release) map[release]state {
	all := map[release]state{}
	for _, its := range releases {
		all[its] = its.observe(g)
	}
	return all
}

// stay checks for some time that the deployed objects remain the same.
func stay(g Gomega, before map[release]state) {
	g.Consistently(func(g Gomega) {
		for its, was := range before {
			g.Expect(its.observe(g).uid).To(Equal(was.uid), its.name)
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

// adopted expects each release to be the earlier one, at a later revision, with the same values. A release of
// strategy InstallOnce stays as it was.
func adopted(g Gomega, before map[release]state) {
	names := map[string][]string{}
	for its, want := range before {
		names[its.cluster] = append(names[its.cluster], its.name)
		now := its.observe(g)
		if its.proxy != "once" {
			g.Expect(now.revision).To(BeNumerically(">", want.revision), its.name)
			now.revision = want.revision
		}
		g.Expect(now).To(Equal(want), its.name)
	}
	for _, cluster := range clusters {
		there := release{cluster: cluster}.kubectl(g, "secrets", "-l", "owner=helm", "-o", "jsonpath={.items[*].metadata.labels.name}")
		g.Expect(slices.Compact(strings.Fields(there))).To(ConsistOf(names[cluster]), "releases on %s", cluster)
	}
}

// hasReleaseProxies expects the same HelmReleaseProxies as before, without values and without CAAPH's finalizers.
func hasReleaseProxies(g Gomega, releases []release) {
	g.Eventually(listed).Should(ConsistOf(releases))
	for _, its := range releases {
		g.Eventually(kubectl).WithArguments("-n", team, "get", "hrp", its.releaseProxy, "-o",
			"jsonpath=values={.spec.values} finalizers={.metadata.finalizers} {.metadata.ownerReferences[0].name}").
			Should(Equal("values= finalizers=[\"fleet.addons.cluster.x-k8s.io/helm\"] " + its.proxy))
	}
	g.Expect(kubectl(g, "-n", team, "get", "hcp,hrp", "-o", "jsonpath={.items[*].metadata.finalizers}")).
		NotTo(ContainSubstring(".addons.cluster.x-k8s.io\""), "helmchartproxy.addons.cluster.x-k8s.io and helmreleaseproxy.addons.cluster.x-k8s.io wait for CAAPH")
}

func testNotManaged(t *testing.T) {
	g := NewWithT(t)
	const crd = "helmchartproxies.addons.cluster.x-k8s.io"
	kubectl(g, "label", "crd", crd, "app.kubernetes.io/managed-by-")
	leftAlone := func() (string, error) {
		return env.Kubectl(ctx, "-n", team, "get", "hcp", "web", "-o", "jsonpath={.status.conditions[?(@.type=='NotManaged')].message}")
	}
	g.Eventually(leftAlone).Should(ContainSubstring("CustomResourceDefinition " + crd + " has no label app.kubernetes.io/managed-by=muster"))
	kubectl(g, "label", "crd", crd, "app.kubernetes.io/managed-by=muster")
	g.Eventually(leftAlone).Should(BeEmpty())
}
