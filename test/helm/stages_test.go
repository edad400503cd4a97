package helm

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/test/fixture"
)

// TestStages rolls changes out in two stages, a canary and the rest, on real agents. A watcher checks at every event
// that no BundleDeployment loses its Content.
func TestStages(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0", "1.2.0")
	g.Expect(charts.Publish("simple", "2.0.0", map[string]string{"values.yaml": simpleTemplate, "broken.yaml": `{{ fail "broken" }}`})).To(Succeed())
	three := cluster{team, "three"}
	g.Expect(env.Apply(ctx, three.yaml(2))).To(Succeed())
	t.Cleanup(func() {
		_, err := env.Kubectl(ctx, "-n", team, "delete", "clusters.cluster.x-k8s.io", "three", "--timeout=3m")
		g.Expect(err).NotTo(HaveOccurred())
	})
	g.Expect(env.WaitForBundles(ctx, team, "three")).To(Succeed())
	one.label(g, "stage=canary")
	one.label(g, "stages=yes")
	two.label(g, "stages=yes")
	watchContents(t)
	password := func(g Gomega, text string) {
		g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: staged-password}, stringData: {values.yaml: 'password: %s'}}", team, text))).To(Succeed())
	}
	password(g, "first")
	g.Expect(env.Apply(ctx, simple("stages", "1.0.0", `  valuesFrom: [{kind: Secret, name: staged-password}]
  rollout:
    stages:
    - {name: canary, clusterSelector: {matchLabels: {stage: canary}}, soak: 2s}
    - {name: rest, percent: 100, approval: Manual, maxUnavailable: 1}
`))).To(Succeed())
	for _, its := range []cluster{one, two} {
		its.says(g, "stages", "stages", "version", "1.0.0")
	}
	g.Eventually(func(g Gomega) { isReady(g, "stages"); rolls(g, "Completed") }).Should(Succeed())

	t.Run("a canary that fails halts the rollout", func(t *testing.T) {
		g := NewWithT(t)
		before := applied(g, two)
		patch(g, "stages", `{"spec":{"version":"2.0.0"}}`)
		g.Eventually(func(g Gomega) { rolls(g, "Halted", "stage canary, 0 of 1 updated: the change fails on team/one") }).Should(Succeed())
		g.Consistently(func(g Gomega) { g.Expect(applied(g, two)).To(Equal(before)) }).WithTimeout(5 * time.Second).Should(Succeed())
		for _, its := range []cluster{one, two} {
			g.Expect(its.data(g, "stages", "stages-values", "version")).To(Equal("1.0.0"), "a failed upgrade uninstalls nothing")
		}
	})
	t.Run("abort takes the canary back", func(t *testing.T) {
		g := NewWithT(t)
		abort(g)
		g.Eventually(func(g Gomega) { isReady(g, "stages"); rolls(g, "Completed") }).Should(Succeed())
		g.Expect(proxy(g, "stages").Spec.Version).To(Equal("1.0.0"))
		one.says(g, "stages", "stages", "version", "1.0.0")
	})
	t.Run("a mended one goes on, and the rest waits for approval", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, "stages", `{"spec":{"version":"1.1.0"}}`)
		one.says(g, "stages", "stages", "version", "1.1.0")
		g.Eventually(func(g Gomega) { rolls(g, "WaitingForApproval", "approve the change for team/two") }).Should(Succeed())
		g.Expect(two.data(g, "stages", "stages-values", "version")).To(Equal("1.0.0"))
	})
	t.Run("a Cluster that joins gets something at once", func(t *testing.T) {
		g := NewWithT(t)
		three.label(g, "stages=yes")
		three.says(g, "stages", "stages", "version", "1.1.0")
		g.Expect(two.data(g, "stages", "stages-values", "version")).To(Equal("1.0.0"))
	})
	t.Run("abort takes all back that have moved, and waits for no approval", func(t *testing.T) {
		g := NewWithT(t)
		abort(g)
		for _, its := range []cluster{one, two, three} { // Cluster three joined with the new version, in the stage that needs approval.
			its.says(g, "stages", "stages", "version", "1.0.0")
		}
		g.Eventually(func(g Gomega) { isReady(g, "stages"); rolls(g, "Completed") }).Should(Succeed())
		patch(g, "stages", `{"spec":{"version":"1.1.0"}}`)
		one.says(g, "stages", "stages", "version", "1.1.0")
		g.Eventually(func(g Gomega) { rolls(g, "WaitingForApproval", "approve the change for team/three, team/two") }).Should(Succeed())
		g.Expect(three.data(g, "stages", "stages-values", "version")).To(Equal("1.0.0"))
	})
	t.Run("approval of one change approves no other", func(t *testing.T) {
		g := NewWithT(t)
		stale := proxy(g, "stages").Status.Rollout.Approval
		g.Expect(stale).NotTo(BeEmpty())
		password(g, "second")
		patch(g, "stages", `{"metadata":{"annotations":{"poke":"1"}}}`)
		g.Eventually(func(g Gomega) {
			g.Expect(one.data(g, "stages", "stages-values", "password")).To(Equal("c2Vjb25k"))
			rolls(g, "WaitingForApproval")
			g.Expect(proxy(g, "stages").Status.Rollout.Approval).NotTo(Equal(stale))
		}).Should(Succeed())
		approve(g, stale)
		g.Consistently(func(g Gomega) {
			g.Expect(two.data(g, "stages", "stages-values", "password")).To(Equal("Zmlyc3Q="))
			g.Expect(two.data(g, "stages", "stages-values", "version")).To(Equal("1.0.0"))
		}).WithTimeout(5 * time.Second).Should(Succeed())
	})
	t.Run("a restart of everything installs nothing again", func(t *testing.T) {
		g := NewWithT(t)
		before := []string{applied(g, one), applied(g, two), applied(g, three)}
		g.Expect(env.Stop(ctx, "muster-helm")).To(Succeed())
		g.Expect(env.Start(ctx, "muster-helm")).To(Succeed())
		g.Eventually(func(g Gomega) { rolls(g, "WaitingForApproval") }).Should(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect([]string{applied(g, one), applied(g, two), applied(g, three)}).To(Equal(before))
		}).WithTimeout(5 * time.Second).Should(Succeed())
	})
	t.Run("the approved change reaches all", func(t *testing.T) {
		g := NewWithT(t)
		approve(g, proxy(g, "stages").Status.Rollout.Approval)
		for _, its := range []cluster{one, two, three} {
			its.says(g, "stages", "stages", "version", "1.1.0")
			its.says(g, "stages", "stages", "password", "c2Vjb25k")
		}
		g.Eventually(func(g Gomega) { isReady(g, "stages"); rolls(g, "Completed") }).Should(Succeed())
		g.Eventually(func(g Gomega) {
			out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "keeps-content-of.fleet.addons.cluster.x-k8s.io", "-o", "name")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(BeEmpty(), "nothing is held any more")
		}).Should(Succeed())
	})
	deleteProxy(g, team, "stages")
}

// TestJoiners lets a Cluster join while the canary fails. Its agent downloads the chart, and gets the last completed version.
func TestJoiners(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0")
	g.Expect(charts.Publish("simple", "2.0.0", map[string]string{"values.yaml": simpleTemplate, "broken.yaml": `{{ fail "broken" }}`})).To(Succeed())
	one.label(g, "joiners=canary")
	g.Expect(env.Apply(ctx, strings.ReplaceAll(simple("stages", "1.0.0", `  download: Agent
  rollout: {stages: [{name: canary, clusterSelector: {matchLabels: {joiners: canary}}}]}
`), "matchLabels: {stages: \"yes\"}", "matchExpressions: [{key: joiners, operator: Exists}]"))).To(Succeed())
	one.says(g, "stages", "stages", "version", "1.0.0")
	g.Eventually(func(g Gomega) { rolls(g, "Completed") }).Should(Succeed())
	patch(g, "stages", `{"spec":{"version":"2.0.0"}}`)
	g.Eventually(func(g Gomega) { rolls(g, "Halted", "the change fails on team/one") }).Should(Succeed())
	two.label(g, "joiners=yes")
	two.says(g, "stages", "stages", "version", "1.0.0")
	g.Eventually(func(g Gomega) { rolls(g, "Halted") }).Should(Succeed())
	publish(g, "simple", "1.1.0")
	patch(g, "stages", `{"spec":{"version":"1.1.0"}}`)
	for _, its := range []cluster{one, two} {
		its.says(g, "stages", "stages", "version", "1.1.0")
	}
	g.Eventually(func(g Gomega) { rolls(g, "Completed") }).Should(Succeed())
	deleteProxy(g, team, "stages")
}

// A clock that was ahead wrote when the canary became ready: the soak time counts from now, and the record is mended.
func TestClockAhead(t *testing.T) {
	g := NewWithT(t)
	publish(g, "simple", "1.0.0", "1.1.0")
	one.label(g, "stage=canary")
	one.label(g, "stages=yes")
	two.label(g, "stages=yes")
	g.Expect(env.Apply(ctx, simple("stages", "1.0.0", `  rollout: {stages: [{name: canary, clusterSelector: {matchLabels: {stage: canary}}, soak: 10s}]}
`))).To(Succeed())
	for _, its := range []cluster{one, two} {
		its.says(g, "stages", "stages", "version", "1.0.0")
	}
	g.Eventually(func(g Gomega) { rolls(g, "Completed") }).Should(Succeed())
	patch(g, "stages", `{"spec":{"version":"1.1.0"}}`)
	release := &addonsv1.HelmReleaseProxy{}
	g.Eventually(func(g Gomega) {
		rolls(g, "Soaking")
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: team, Name: "stages-one"}, release)).To(Succeed())
		record := plan.RecordOf(release)
		g.Expect(record.Rollout.Ready).NotTo(BeNil())
		record.Rollout.Ready = ptr.To(metav1.NewTime(time.Now().Add(48 * time.Hour)))
		g.Expect(admin.Patch(ctx, release, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, plan.RecordAnnotation, record.String())))).To(Succeed())
	}).Should(Succeed())
	g.Expect(plan.RecordOf(release).Rollout.Ready.After(time.Now())).To(BeTrue(), "the record was not set ahead")
	two.says(g, "stages", "stages", "version", "1.1.0")
	g.Eventually(func(g Gomega) { rolls(g, "Completed") }).Should(Succeed())
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(release), release)).To(Succeed())
	g.Expect(plan.RecordOf(release).Rollout.Ready.After(time.Now())).To(BeFalse(), "the record is not mended")
	deleteProxy(g, team, "stages")
}

// rolls checks the rollout of the HelmChartProxy stages.
func rolls(g Gomega, reason string, messages ...string) {
	its := proxy(g, "stages")
	g.Expect(its.Status.ObservedGeneration).To(Equal(its.Generation))
	condition := meta.FindStatusCondition(its.Status.Conditions, "RolloutCompleted")
	g.Expect(condition).NotTo(BeNil())
	g.Expect(condition.Reason).To(Equal(reason), condition.Message)
	for _, message := range messages {
		g.Expect(condition.Message).To(ContainSubstring(message))
	}
}

// abort takes the HelmChartProxy stages back, as its user does.
func abort(g Gomega) {
	out, err := exec.CommandContext(ctx, env.Program("kubectl-muster"), "rollout", "abort", "team/stages", "--kubeconfig="+env.Kubeconfig).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	g.Expect(string(out)).To(ContainSubstring(`→ "1.0.0"`))
}

func approve(g Gomega, hash string) {
	patch(g, "stages", fmt.Sprintf(`{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/rollout-approved":%q}}}`, hash))
}

// applied returns what the agent of a cluster has applied, and the revision of the release.
func applied(g Gomega, on cluster) string {
	out, err := env.Kubectl(ctx, "get", "bundledeployments.fleet.cattle.io", "-A", "-l", "helmchartproxy-name.fleet.addons.cluster.x-k8s.io=stages,fleet.cattle.io/cluster="+on.name,
		"-o", "jsonpath={.items[*].spec.deploymentID} {.items[*].status.release}")
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

// watchContents checks until the test ends that each Content exists that a BundleDeployment names, whenever a
// BundleDeployment changes or a Content goes.
func watchContents(t *testing.T) {
	g := NewWithT(t)
	all, err := fixture.Client(env)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	for _, list := range []client.ObjectList{&fleetv1.BundleDeploymentList{}, &fleetv1.ContentList{}} {
		watched, err := all.Watch(ctx, list)
		g.Expect(err).NotTo(HaveOccurred())
		wait.Go(func() {
			count := 0
			for event := range watched.ResultChan() {
				switch its := event.Object.(type) {
				case *fleetv1.BundleDeployment:
					if event.Type != watch.Deleted {
						hasContent(ctx, t, all, its)
						count++
					}
				case *fleetv1.Content:
					if event.Type == watch.Deleted {
						isUnused(ctx, t, all, its.Name)
						count++
					}
				}
			}
			t.Logf("%T: %d events", list, count)
			if count == 0 {
				t.Errorf("%T: there was no event", list)
			}
		})
	}
	t.Cleanup(func() { cancel(); wait.Wait() })
}

func hasContent(ctx context.Context, t *testing.T, all client.Client, its *fleetv1.BundleDeployment) {
	name, _, _ := strings.Cut(its.Spec.DeploymentID, ":")
	if its.Labels[fleetv1.ContentNameLabel] == "" || name == "" || !its.DeletionTimestamp.IsZero() {
		return
	}
	if err := all.Get(ctx, client.ObjectKey{Name: name}, &fleetv1.Content{}); apierrors.IsNotFound(err) {
		live := &fleetv1.BundleDeployment{} // The event may be old.
		if all.Get(ctx, client.ObjectKeyFromObject(its), live) == nil && live.Spec.DeploymentID == its.Spec.DeploymentID {
			t.Errorf("Content %s does not exist, and BundleDeployment %s/%s names it", name, its.Namespace, its.Name)
		}
	}
}

func isUnused(ctx context.Context, t *testing.T, all client.Client, content string) {
	var deployments fleetv1.BundleDeploymentList
	if all.List(ctx, &deployments) != nil {
		return // The test is over.
	}
	for _, its := range deployments.Items {
		if strings.HasPrefix(its.Spec.DeploymentID, content+":") && its.DeletionTimestamp.IsZero() {
			t.Errorf("Content %s was deleted, and BundleDeployment %s/%s names it", content, its.Namespace, its.Name)
		}
	}
}
