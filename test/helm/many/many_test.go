package many

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/rollout"
	"github.com/muster-fleet/muster/test/helm/gates"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	// canaries is how many Clusters the first stage has, and tenth what the second one has.
	canaries, tenth = 2, clusters / 10
	soak            = 3 * time.Second
	// bound is how many Clusters of the second stage may be unavailable at once, and restBound of all others.
	bound, restBound = 5, 40
	// steps is for how many Clusters the requests are counted, one after the other, and mostRequests the bound for one.
	steps, mostRequests = 15, 20
)

// deployed is a HelmChartProxy, and what the agents say about it.
type deployed struct {
	name, download string
	a              *agents
	stages         []gates.Stage
	rollouts       []gates.Rollout
}

// TestMany rolls changes out over 200 Clusters in three stages, one of which halts. What every watch has reported since
// the beginning is checked afterwards, in the order of the revisions.
func TestMany(t *testing.T) {
	for _, download := range []string{"Manager", "Agent"} {
		t.Run(download, func(t *testing.T) {
			name := "many-" + strings.ToLower(download)
			d := &deployed{name: name, download: download, a: play(t, name), stages: stages()}
			d.test(t)
		})
	}
}

// stages are the stages that the HelmChartProxies have.
func stages() []gates.Stage {
	var all []types.NamespacedName
	for i := range clusters {
		all = append(all, types.NamespacedName{Namespace: namespace, Name: clusterName(i)})
	}
	isCanary := func(its types.NamespacedName) bool { return its.Name < clusterName(canaries) }
	stages := []gates.Stage{{MaxUnavailable: canaries, Soak: soak}, {MaxUnavailable: bound, Soak: soak}, {MaxUnavailable: restBound}}
	for cluster, stage := range rollout.Assign([]rollout.Selection{{Matches: isCanary}, {Percent: 10}}, all) {
		stages[stage].Clusters = append(stages[stage].Clusters, cluster.Name)
	}
	for i := range stages {
		slices.Sort(stages[i].Clusters)
	}
	return stages
}

func (d *deployed) test(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.Apply(ctx, d.yaml(`{matchLabels: {many: "yes"}}`, fmt.Sprintf(`
    maxUnavailable: %d
    stages:
    - {name: canary, clusterSelector: {matchLabels: {canary: "yes"}}, maxUnavailable: 100%%, soak: %[2]s}
    - {name: tenth, percent: 10, maxUnavailable: %d, soak: %[2]s}
`, restBound, soak, bound)))).To(Succeed())
	begin := time.Now()
	d.completes(g, "1.0.0", "first", clusters)
	t.Logf("installed on %d Clusters in %s", clusters, time.Since(begin).Round(time.Second))
	its := d.proxy(g)
	g.Expect(its.Status.Rollout.Stages).To(HaveLen(3))
	for i, want := range []int{canaries, tenth, clusters - canaries - tenth} {
		g.Expect(its.Status.Rollout.Stages[i].Clusters).To(Equal(want))
	}
	bad := d.stages[1].Clusters[0]
	t.Run("a version and the values", func(t *testing.T) {
		g, begin := NewWithT(t), time.Now()
		// As many get it as may be unavailable, and no more, while no agent of their stage is there.
		d.a.leave(slices.Concat(d.stages[1].Clusters, d.stages[2].Clusters))
		d.change(g, "1.1.0", "second", "")
		for _, stage := range d.stages[1:] {
			unavailable := func() int { return d.a.unavailable(stage.Clusters) }
			g.Eventually(unavailable).Should(Equal(stage.MaxUnavailable))
			g.Consistently(unavailable).WithTimeout(soak).Should(Equal(stage.MaxUnavailable))
			d.a.leave(slices.DeleteFunc(slices.Clone(d.stages[2].Clusters), func(name string) bool { return slices.Contains(stage.Clusters, name) }))
		}
		d.completes(g, "1.1.0", "second", clusters)
		t.Logf("in %s", time.Since(begin).Round(time.Second))
	})
	t.Run("the values", func(t *testing.T) {
		g, begin := NewWithT(t), time.Now()
		d.change(g, "1.1.0", "third", "")
		d.completes(g, "1.1.0", "third", clusters)
		t.Logf("in %s", time.Since(begin).Round(time.Second))
	})
	t.Run("one that fails in the second stage never reaches the third", func(t *testing.T) {
		g := NewWithT(t)
		d.change(g, "1.2.0", "fourth", bad)
		g.Eventually(func(g Gomega) {
			reason, message := rolloutOf(d.proxy(g))
			g.Expect(reason+" "+message).To(ContainSubstring("the change fails on "+namespace+"/"+bad), message)
			g.Expect(reason).To(Equal(addonsv1.RolloutHaltedReason))
		}).Should(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(d.a.have()["1.1.0 who: NAME-third"]).To(BeNumerically(">=", clusters-canaries-tenth))
		}).WithTimeout(2 * soak).Should(Succeed())
	})
	t.Run("mended, it goes on", func(t *testing.T) {
		g := NewWithT(t)
		until := d.change(g, "1.3.0", "fifth", "")
		d.completes(g, "1.3.0", "fifth", clusters)
		d.a.history(g)
		d.a.mu.Lock()
		defer d.a.mu.Unlock()
		t.Logf("halted at the revisions %v, mended at %d", d.a.halted, until)
		g.Expect(d.a.halted).NotTo(BeEmpty())
		for _, revision := range d.a.granted {
			g.Expect(revision < d.a.halted[0] || revision > until).To(BeTrue(), "a release may move at revision %d, and the rollout is halted from %d to %d", revision, d.a.halted[0], until)
		}
	})
	events := d.a.history(g)
	t.Logf("%d events, %d grants", len(events), len(d.a.granted))
	g.Expect(len(events)).To(BeNumerically(">", 10*clusters))
	for i, problem := range gates.Check(events, d.rollouts) {
		if i < 20 {
			t.Error(problem)
		}
	}
	t.Run("a step asks no more than with fewer Clusters", func(t *testing.T) {
		g := NewWithT(t)
		others := &deployed{name: "few-" + strings.ToLower(d.download), download: d.download, a: play(t, "few-"+strings.ToLower(d.download)), stages: []gates.Stage{{}}}
		for i := range few {
			others.stages[0].Clusters = append(others.stages[0].Clusters, clusterName(i))
		}
		g.Expect(env.Apply(ctx, others.yaml(`{matchLabels: {few: "yes"}}`, " {maxUnavailable: 1}"))).To(Succeed())
		others.completes(g, "1.0.0", "first", few)
		small, large := others.step(t), d.step(t)
		// A slow step takes a few more: reports that come together in a fast one are written one by one. Anything for each
		// other Cluster would be four times as much.
		g.Expect(large).To(BeNumerically("<=", small*3/2))
		g.Expect(large).To(BeNumerically("<=", mostRequests))
		for _, its := range []*deployed{others, d} {
			its.a.leave(nil)
			_, err := env.Kubectl(ctx, "-n", namespace, "delete", "hcp", its.name, "--wait=false")
			g.Expect(err).NotTo(HaveOccurred())
		}
	})
}

// step changes the values of one Cluster after the other, and returns the median of the requests that the program sends from
// one to the next.
func (d *deployed) step(t *testing.T) int {
	g := NewWithT(t)
	_, err := env.Kubectl(ctx, "-n", namespace, "patch", "hcp", d.name, "--type=merge", `-p={"spec":{"rollout":{"stages":null,"maxUnavailable":1}}}`)
	g.Expect(err).NotTo(HaveOccurred())
	var all []string
	for _, stage := range d.stages {
		all = append(all, stage.Clusters...)
	}
	d.a.leave(all)
	since := d.change(g, d.proxy(g).Spec.Version, "step", "")
	g.Eventually(func(g Gomega) { // All but the first have noted that they wait.
		var releases addonsv1.HelmReleaseProxyList
		g.Expect(admin.List(ctx, &releases, client.InNamespace(namespace))).To(Succeed())
		its := d.proxy(g)
		releases.Items = slices.DeleteFunc(releases.Items, func(release addonsv1.HelmReleaseProxy) bool { return !metav1.IsControlledBy(&release, its) })
		g.Expect(its.Status.Rollout.Stages[0].Held).To(Equal(len(releases.Items) - 1))
	}).Should(Succeed())
	tail, err := env.AuditTail()
	g.Expect(err).NotTo(HaveOccurred())
	d.a.leave(nil)
	var moves []time.Time
	g.Eventually(func(g Gomega) {
		moves = d.a.moves(since)
		g.Expect(len(moves)).To(BeNumerically(">", steps+1))
	}).Should(Succeed())
	requests, err := tail.Read(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-helm"), Where: func(e stack.AuditEvent) bool {
		return e.Verb != "watch" && e.Resource != "leases" && e.Resource != ""
	}})
	g.Expect(err).NotTo(HaveOccurred())
	var counts []int
	kinds := map[string]int{}
	for i := 1; i <= steps; i++ {
		count := 0
		for _, e := range requests {
			if !e.Received.Before(moves[i]) && e.Received.Before(moves[i+1]) {
				count++
				kinds[strings.TrimSuffix(e.Verb+" "+e.Resource+"/"+e.Subresource, "/")]++
			}
		}
		counts = append(counts, count)
	}
	t.Logf("%s: requests for one Cluster after the other: %v; in %d steps: %v", d.name, counts, steps, kinds)
	d.a.leave(all) // It asks nothing more while another one is counted.
	slices.Sort(counts)
	return counts[len(counts)/2]
}

func (d *deployed) yaml(selector, rollout string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s}
spec:
  clusterSelector: %s
  repoURL: %s
  chartName: simple
  version: 1.0.0
  namespace: many
  download: %s
  tlsConfig: {caSecret: {name: repository}}
  valuesTemplate: 'who: {{ .Cluster.metadata.name }}-first'
  rollout:%s
`, namespace, d.name, selector, charts.URL, d.download, rollout)
}

// change changes version and values, in one write. It returns the revision from which on they are wanted.
func (d *deployed) change(g Gomega, version, word, bad string) int64 {
	its := &addonsv1.HelmChartProxy{}
	its.Namespace, its.Name = namespace, d.name
	template := fmt.Sprintf(`who: {{ .Cluster.metadata.name }}-%s{{ if eq .Cluster.metadata.name %q }}-bad{{ end }}`, word, bad)
	patch := fmt.Sprintf(`{"spec":{"version":%q,"valuesTemplate":%q}}`, version, template)
	g.Expect(admin.Patch(ctx, its, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
	has := map[string]string{}
	for _, stage := range d.stages {
		for _, name := range stage.Clusters {
			has[name] = fmt.Sprintf("%s who: %s-%s", version, name, word)
			if name == bad {
				has[name] += "-bad"
			}
		}
	}
	d.rollouts = append(d.rollouts, gates.Rollout{Since: revisionOf(its), Stages: d.stages, Has: has})
	return revisionOf(its)
}

func (d *deployed) proxy(g Gomega) *addonsv1.HelmChartProxy {
	its := &addonsv1.HelmChartProxy{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: d.name}, its)).To(Succeed())
	return its
}

func rolloutOf(its *addonsv1.HelmChartProxy) (reason, message string) {
	condition := meta.FindStatusCondition(its.Status.Conditions, addonsv1.RolloutCompletedCondition)
	if condition == nil || its.Status.ObservedGeneration != its.Generation {
		return "", ""
	}
	return condition.Reason, condition.Message
}

// completes waits until the rollout is completed, and so many Clusters have this version and these values.
func (d *deployed) completes(g Gomega, version, word string, many int) {
	g.Eventually(func(g Gomega) {
		its := d.proxy(g)
		reason, message := rolloutOf(its)
		g.Expect(reason).To(Equal(addonsv1.RolloutCompletedReason), message)
		g.Expect(meta.IsStatusConditionTrue(its.Status.Conditions, addonsv1.ReadyCondition)).To(BeTrue())
		have := d.a.have()
		g.Expect(have[version+" who: NAME-"+word]).To(Equal(many), "%v", have)
	}).Should(Succeed())
}
