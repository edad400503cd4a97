package helm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	// rolling is the namespace of this many Clusters that exist in memory only.
	rolling  = "rolling"
	clusters = 10
	// bound is how many of the Clusters may be unavailable at once.
	bound = 2
)

// TestStaged rolls changes of values out over ten Clusters: the number of unavailable Clusters stays within the
// bound, whichever values change, and whether Muster or the agents download the chart.
func TestStaged(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	inMemory(t)
	for _, carrier := range []struct{ download, from string }{{"Manager", "ConfigMap"}, {"Agent", "Secret"}} {
		t.Run(carrier.download, func(t *testing.T) {
			s := staged{name: "staged-" + strings.ToLower(carrier.download), from: carrier.from}
			s.test(t, carrier.download)
		})
	}
}

// inMemory makes the Clusters.
func inMemory(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", rolling))).To(Succeed())
	class, err := env.InMemoryClusterClass(rolling)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, class)).To(Succeed())
	g.Expect(env.WaitForClusterClass(ctx, rolling, stack.InMemoryClass)).To(Succeed())
	for i := range clusters {
		its := stack.TopologyCluster{Namespace: rolling, Name: fmt.Sprintf("c%d", i), Labels: map[string]string{"staged": "yes"}}
		g.Expect(env.Apply(ctx, its.YAML())).To(Succeed())
	}
	for i := range clusters {
		g.Expect(env.WaitForControlPlane(ctx, rolling, fmt.Sprintf("c%d", i))).To(Succeed())
	}
	secret := strings.Replace(repositorySecret(), "namespace: "+team, "namespace: "+rolling, 1)
	g.Expect(env.Apply(ctx, secret)).To(Succeed())
}

// staged is a HelmChartProxy with a bounded rollout.
type staged struct {
	name, from string
	p          *player
}

func (s staged) yaml(download string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s}
spec:
  clusterSelector: {matchLabels: {staged: "yes"}}
  repoURL: %s
  chartName: simple
  version: 1.0.0
  namespace: rolling
  download: %s
  credentials: {secret: {name: repository}, key: config.json}
  tlsConfig: {caSecret: {name: repository}}
  rollout: {maxUnavailable: %d}
  valuesFrom: [{kind: %s, name: for-all}]
  valuesTemplate: 'who: {{ .Cluster.metadata.name }}-{{ .Cluster.metadata.labels.who | default "first" }}'
`, rolling, s.name, charts.URL, download, bound, s.from)
}

// share writes the values for all Clusters.
func (s staged) share(g Gomega, text string) {
	field := "data"
	if s.from == "Secret" {
		field = "stringData"
	}
	g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: %s, metadata: {namespace: %s, name: for-all}, %s: {values.yaml: 'shared: %s'}}", s.from, rolling, field, text))).To(Succeed())
}

func (s staged) patch(g Gomega, patch string) {
	_, err := env.Kubectl(ctx, "-n", rolling, "patch", "hcp", s.name, "--type=merge", "-p", patch)
	g.Expect(err).NotTo(HaveOccurred())
}

func (s staged) template(g Gomega, template string) {
	s.patch(g, fmt.Sprintf(`{"spec":{"valuesTemplate":%q}}`, template))
}

func (s staged) proxy(g Gomega) *addonsv1.HelmChartProxy {
	its := &addonsv1.HelmChartProxy{}
	g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: rolling, Name: s.name}, its)).To(Succeed())
	return its
}

// reaches waits until this many Clusters have values with these texts, and all releases are ready.
func (s staged) reaches(g Gomega, many int, texts ...string) {
	g.Eventually(func(g Gomega) {
		g.Expect(s.p.have(texts...)).To(HaveLen(many), "%v", texts)
		its := s.proxy(g)
		g.Expect(its.Status.ObservedGeneration).To(Equal(its.Generation))
		g.Expect(meta.IsStatusConditionTrue(its.Status.Conditions, "HelmReleaseProxiesReady")).To(BeTrue(), told(its))
	}).Should(Succeed())
}

// values lists the existing objects with values.
func (s staged) values(g Gomega) []string {
	return strings.Fields(made(g, s.name, "configmaps,secrets"))
}

func (s staged) test(t *testing.T, download string) {
	g := NewWithT(t)
	s.share(g, "one")
	s.p = play(t, s.name)
	g.Expect(env.Apply(ctx, s.yaml(download))).To(Succeed())
	s.reaches(g, clusters, "shared: one", "-first")
	if !t.Run("the values for all", func(t *testing.T) {
		g := NewWithT(t)
		s.p.begin(g)
		s.share(g, "two")
		s.reaches(g, clusters, "shared: two", "-first")
		s.p.bounded(g)
		t.Logf("unavailable at once:\n%s", strings.Join(s.p.trace, "\n"))
	}) {
		return
	}
	t.Run("the values of each", func(t *testing.T) {
		g := NewWithT(t)
		s.p.begin(g)
		s.template(g, `who: {{ .Cluster.metadata.name }}-{{ .Cluster.metadata.labels.who | default "second" }}`)
		s.reaches(g, clusters, "shared: two", "-second")
		s.p.bounded(g)
	})
	t.Run("values and version", func(t *testing.T) {
		g := NewWithT(t)
		s.p.begin(g)
		s.patch(g, `{"spec":{"version":"1.1.0","valuesTemplate":"who: {{ .Cluster.metadata.name }}-{{ .Cluster.metadata.labels.who | default \"third\" }}"}}`)
		s.reaches(g, clusters, "shared: two", "-third")
		s.p.bounded(g)
	})
	t.Run("those of one Cluster: its alone are written", s.testOne)
	t.Run("some that never become ready reach no more Clusters than may be unavailable", s.testBad)
	t.Run("a Cluster whose template fails keeps what it has", s.testFailing)
	t.Run("a silent agent blocks no rollout", s.testOffline)
	t.Run("nothing is left that nobody reads", s.testLeft)
	t.Run("deleted: nothing is left", s.testDeleted)
}

func (s staged) testOne(t *testing.T) {
	g := NewWithT(t)
	s.p.begin(g)
	since := time.Now()
	cluster{rolling, "c3"}.label(g, "who=me")
	s.reaches(g, 1, "c3-me")
	g.Eventually(func(g Gomega) {
		var all []string
		for _, write := range writes(g, since) {
			all = append(all, regexp.MustCompile(`(hcp-[^.]*[a-z])(-[0-9a-f]{8})?$`).ReplaceAllString(write, "$1"))
		}
		all = slices.DeleteFunc(all, func(write string) bool { return write == "patch helmreleaseproxies "+s.name+"-c3" })
		all = slices.Compact(all) // The program may empty an empty Secret again, which changes nothing.
		g.Expect(all).To(HaveLen(3), "%v", all)
		made, gone := "create configmaps", "delete configmaps"
		if s.from == "Secret" { // The garbage collector deletes it: the program may not.
			made, gone = "create secrets", "update secrets"
		}
		g.Expect(all[0]).To(MatchRegexp(`^` + made + ` hcp-` + s.name + `[.]for[.]c3([.]1)?$`))
		g.Expect(all[1]).To(HavePrefix("patch bundles hcp-"))
		g.Expect(all[2]).To(MatchRegexp(`^` + gone + ` hcp-` + s.name + `[.]for[.]c3([.]1)?$`))
		g.Expect(strings.TrimPrefix(all[2], gone)).NotTo(Equal(strings.TrimPrefix(all[0], made)))
	}).Should(Succeed())
	g.Expect(s.p.have("-third")).To(HaveLen(clusters - 1))
	s.p.bounded(g)
	g.Expect(s.p.most).To(Equal(1))
	cluster{rolling, "c3"}.label(g, "who-")
	s.reaches(g, clusters, "-third")
}

func (s staged) testBad(t *testing.T) {
	g := NewWithT(t)
	s.p.begin(g)
	// Those that fail are not the first by name, so that the next change does not reach them first for that reason.
	s.template(g, `who: {{ $name := .Cluster.metadata.name }}{{ $name }}-{{ if or (eq $name "c0") (eq $name "c1") }}fourth{{ else }}bad{{ end }}`)
	g.Eventually(func(g Gomega) { g.Expect(s.p.have("-bad")).To(HaveLen(bound)) }).Should(Succeed())
	g.Expect(s.p.have("-fourth")).To(Equal([]string{"c0", "c1"}))
	g.Consistently(func(g Gomega) { g.Expect(s.p.have("-third")).To(HaveLen(clusters - bound - 2)) }).WithTimeout(10 * time.Second).Should(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(told(s.proxy(g))).To(ContainSubstring("the release waits for its turn in the rollout"))
	}).Should(Succeed())
	s.template(g, `who: {{ .Cluster.metadata.name }}-good`)
	s.reaches(g, clusters, "shared: two", "-good")
	s.p.bounded(g)
}

func (s staged) testFailing(t *testing.T) {
	g := NewWithT(t)
	s.p.begin(g)
	s.template(g, `who: {{ if eq .Cluster.metadata.name "c5" }}{{ fail "no" }}{{ end }}{{ .Cluster.metadata.name }}-fifth`)
	s.reaches(g, clusters-1, "shared: two", "-fifth")
	g.Expect(s.p.have("shared: two", "-good")).To(Equal([]string{"c5"}))
	g.Expect(told(s.proxy(g))).To(ContainSubstring("rolling/c5: valuesTemplate"))
	s.template(g, `who: {{ .Cluster.metadata.name }}-sixth`)
	s.reaches(g, clusters, "shared: two", "-sixth")
	s.p.bounded(g)
}

// testOffline makes c0 the canary, together with c1, and its agent silent: a change that c0 never takes over reaches all
// others, the canary first.
func (s staged) testOffline(t *testing.T) {
	g := NewWithT(t)
	silent := func(since time.Time) {
		patch := fmt.Sprintf(`{"status":{"agent":{"lastSeen":%q}}}`, since.UTC().Format(time.RFC3339))
		_, err := env.Kubectl(ctx, "-n", rolling, "patch", "clusters.fleet.cattle.io", "c0", "--subresource=status", "--type=merge", "-p", patch)
		g.Expect(err).NotTo(HaveOccurred())
	}
	s.p.begin(g)
	for _, name := range []string{"c0", "c1"} {
		cluster{rolling, name}.label(g, "canary=yes")
	}
	silent(time.Now().Add(-time.Hour))
	s.patch(g, `{"spec":{"rollout":{"offlineAfter":"10m","stages":[{"name":"canary","clusterSelector":{"matchLabels":{"canary":"yes"}}}]}}}`)
	s.template(g, `who: {{ .Cluster.metadata.name }}-{{ if eq .Cluster.metadata.name "c0" }}bad{{ else }}seventh{{ end }}`)
	g.Eventually(func(g Gomega) {
		g.Expect(s.p.have("-seventh")).To(HaveLen(clusters - 1))
		its := s.proxy(g)
		g.Expect(its.Status.ObservedGeneration).To(Equal(its.Generation))
		completed := meta.FindStatusCondition(its.Status.Conditions, "RolloutCompleted")
		g.Expect(string(completed.Status)+" "+completed.Message).To(Equal("True every other Cluster has the wanted state (1 offline: rolling/c0)"), told(its))
	}).Should(Succeed())
	s.template(g, `who: {{ .Cluster.metadata.name }}-eighth`)
	silent(time.Now())
	s.reaches(g, clusters, "-eighth")
	g.Eventually(func(g Gomega) {
		g.Expect(meta.IsStatusConditionTrue(s.proxy(g).Status.Conditions, "RolloutCompleted")).To(BeTrue(), told(s.proxy(g)))
	}).Should(Succeed())
	s.patch(g, fmt.Sprintf(`{"spec":{"rollout":{"offlineAfter":null,"stages":null,"maxUnavailable":%d}}}`, bound))
}

func (s staged) testLeft(t *testing.T) {
	g := NewWithT(t)
	var want []any
	for i := range clusters {
		want = append(want, MatchRegexp(`^%s/hcp-%s[.]for[.]c%d([.]1)?$`, strings.ToLower(s.from), s.name, i))
	}
	if s.from == "Secret" { // Agents download the chart, with credentials.
		want = append(want, MatchRegexp(`^secret/hcp-%s.*[.]for-agents-`, s.name))
	}
	g.Eventually(func(g Gomega) { g.Expect(s.values(g)).To(ConsistOf(want...)) }).Should(Succeed())
	// Fleet's copies for a Cluster go with the release: there are few of them, however often the values change.
	out, err := env.Kubectl(ctx, "-n", rolling, "get", "clusters.fleet.cattle.io", "c0", "-o", "jsonpath={.status.namespace}")
	g.Expect(err).NotTo(HaveOccurred())
	out, err = env.Kubectl(ctx, "-n", out, "get", "configmaps,secrets", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(regexp.MustCompile(`hcp-`+s.name+`[.]for[.]`).FindAllString(out, -1))).To(BeNumerically("<=", 2), out)
}

func (s staged) testDeleted(t *testing.T) {
	g := NewWithT(t)
	deleteProxy(g, rolling, s.name)
	g.Eventually(func(g Gomega) {
		g.Expect(made(g, s.name, "bundles.fleet.cattle.io,bundledeployments.fleet.cattle.io,configmaps,secrets,hrp")).To(BeEmpty())
	}).Should(Succeed())
}

// TestRollout rolls out a version that fails: with maxUnavailable 1, only one Cluster gets it.
func TestRollout(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	g.Expect(charts.Publish("simple", "2.0.0", map[string]string{"values.yaml": simpleTemplate, "broken.yaml": `{{ fail "broken" }}`})).To(Succeed())
	one.label(g, "rolled=yes")
	two.label(g, "rolled=yes")
	g.Expect(env.Apply(ctx, simple("rolled", "1.0.0", "  rollout: {maxUnavailable: 1}\n  valuesTemplate: 'who: {{ .Cluster.metadata.name }}'"))).To(Succeed())
	for _, its := range []cluster{one, two} {
		its.says(g, "rolled", "rolled", "version", "1.0.0")
	}
	g.Eventually(func(g Gomega) { isReady(g, "rolled") }).Should(Succeed())
	// deployments returns how many Clusters the rollout has reached, and how many still wait.
	deployments := func(g Gomega) (reached, waiting int) {
		out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=rolled",
			"-o", `jsonpath={range .items[*]}{.spec.deploymentID} {.metadata.labels.fleet\.cattle\.io/content-name}{"\n"}{end}`)
		g.Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(out) {
			switch ids := strings.Fields(line); {
			case len(ids) < 2: // It keeps the Content of the others.
			case strings.HasPrefix(ids[0], ids[1]+":"):
				reached++
			default:
				waiting++
			}
		}
		return reached, waiting
	}
	t.Run("one that fails reaches no second Cluster", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "rolled", `{"spec":{"version":"2.0.0"}}`)
		g.Eventually(func(g Gomega) {
			reached, waiting := deployments(g)
			g.Expect([]int{reached, waiting}).To(Equal([]int{1, 1}))
		}).Should(Succeed())
		g.Consistently(func(g Gomega) {
			_, waiting := deployments(g)
			g.Expect(waiting).To(Equal(1))
		}).WithTimeout(15 * time.Second).Should(Succeed())
		g.Expect(told(proxy(g, "rolled"))).To(ContainSubstring("the release waits for its turn in the rollout"))
		for _, its := range []cluster{one, two} {
			g.Expect(its.data(g, "rolled", "rolled-values", "version")).To(Equal("1.0.0"))
		}
	})
	t.Run("the next one reaches all", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "rolled", `{"spec":{"version":"1.1.0"}}`)
		for _, its := range []cluster{one, two} {
			its.says(g, "rolled", "rolled", "version", "1.1.0")
		}
		g.Eventually(func(g Gomega) { isReady(g, "rolled") }).Should(Succeed())
	})
	deleteProxy(g, team, "rolled")
}
