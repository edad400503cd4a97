package hold

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// unchecked lets a version be changed while the last one has not reached the control plane, also back.
const unchecked = "unsafe.topology.cluster.x-k8s.io/disable-update-version-check"

// idle is a Cluster without workers, so without an agent: its Bundle is never ready.
func (c upgraded) idle(number int, class, version, bound string) string {
	whole := c.yaml(number, version, fmt.Sprintf("%s: %s, %s: \"\"", stamp.HoldAnnotation, bound, unchecked))
	before, _, _ := strings.Cut(whole, "    workers:")
	return strings.Replace(before, "name: standard", "name: "+class, 1)
}

func (c upgraded) annotate(g Gomega, key, value string) {
	g.Expect(admin.Patch(ctx, c.live(g), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, key, value)))).To(Succeed())
}

// waits expects that Cluster API keeps the control plane at a version while the upgrade is held.
func (c upgraded) waits(g Gomega, version string) {
	g.Eventually(func(g Gomega) {
		c.says(g, "True WaitingForAddOns")
		g.Expect(conditionMessage(c.live(g), clusterv1.ClusterTopologyReconciledCondition)).To(ContainSubstring(stamp.HookAnnotation))
	}).Should(Succeed())
	g.Expect(c.controlPlane(g)).To(Equal(version))
}

// upgrades waits for the end of a hold, and for the control plane.
func (c upgraded) upgrades(g Gomega, reason, version string) {
	g.Eventually(func(g Gomega) {
		c.says(g, "False "+reason)
		g.Expect(c.live(g).Annotations).NotTo(HaveKey(stamp.HookAnnotation))
		g.Expect(c.controlPlane(g)).To(Equal(version))
		g.Expect(c.live(g).Annotations["runtime.cluster.x-k8s.io/pending-hooks"]).To(BeEmpty(), "the upgrade is over")
	}).Should(Succeed())
}

func conditionMessage(cluster *clusterv1.Cluster, of string) string {
	for _, its := range cluster.Status.Conditions {
		if its.Type == of {
			return its.Message
		}
	}
	return ""
}

// TestCases upgrades one Cluster again and again. Its add-on is never ready.
func TestCases(t *testing.T) {
	g := NewWithT(t)
	two := upgraded{"two"}
	two.tell(t)
	g.Expect(env.Apply(ctx, two.idle(201, "standard", "v1.35.0", "10s"))).To(Succeed())
	g.Expect(env.Apply(ctx, fixture.DataBundle(team, "never", "[{clusterName: two}]", "{from: never}"))).To(Succeed())
	g.Eventually(func(g Gomega) { two.says(g, "False NoUpgrade") }).Should(Succeed())
	step := func(name string, do func(g Gomega)) {
		if !t.Failed() {
			t.Run(name, func(t *testing.T) { do(NewWithT(t)) })
		}
	}
	step("the bound", func(g Gomega) {
		g.Expect(two.setVersion(g, "v1.35.1")).NotTo(BeEmpty())
		two.waits(g, "v1.35.0")
		two.upgrades(g, "BoundPassed", "v1.35.1")
	})
	two.annotate(g, stamp.HoldAnnotation, `"10m"`)
	step("changed back", func(g Gomega) {
		g.Expect(two.setVersion(g, "v1.35.2")).NotTo(BeEmpty())
		two.waits(g, "v1.35.1")
		g.Expect(two.setVersion(g, "v1.35.1")).To(BeEmpty())
		two.upgrades(g, "Reverted", "v1.35.1")
	})
	step("two changes, the syncer killed, and opted out", func(g Gomega) {
		g.Expect(two.setVersion(g, "v1.35.2")).NotTo(BeEmpty())
		two.waits(g, "v1.35.1")
		again, _ := hold.Parse(two.setVersion(g, "v1.35.3"))
		g.Expect([]string{again.From, again.To}).To(Equal([]string{"v1.35.1", "v1.35.3"}))
		g.Expect(env.Kill(ctx, "muster-syncer")).To(Succeed())
		two.waits(g, "v1.35.1")
		g.Expect(env.Start(ctx, "muster-syncer")).To(Succeed())
		g.Consistently(func(g Gomega) { g.Expect(two.controlPlane(g)).To(Equal("v1.35.1")) }).WithTimeout(5 * time.Second).Should(Succeed())
		two.annotate(g, stamp.HoldAnnotation, `"0s"`)
		g.Eventually(func(g Gomega) { g.Expect(two.controlPlane(g)).To(Equal("v1.35.3")) }).Should(Succeed())
		g.Expect(two.live(g).Annotations).NotTo(HaveKey(stamp.HookAnnotation))
		g.Eventually(func(g Gomega) { g.Expect(conditions.Get(two.live(g), addonsv1.FleetUpgradeHeldCondition)).To(BeNil()) }).Should(Succeed())
	})
	two.annotate(g, stamp.HoldAnnotation, `"10m"`)
	g.Eventually(func(g Gomega) { two.says(g, "False NoUpgrade") }).Should(Succeed())
	step("the webhook is down", func(g Gomega) {
		g.Expect(env.Stop(ctx, "muster-webhook")).To(Succeed())
		defer func() { g.Expect(env.Start(ctx, "muster-webhook")).To(Succeed()) }()
		g.Expect(two.setVersion(g, "v1.35.4")).To(BeEmpty())
		two.upgrades(g, "NotHeld", "v1.35.4")
	})
	step("uninstalled while it is held", func(g Gomega) {
		g.Expect(two.setVersion(g, "v1.35.5")).NotTo(BeEmpty())
		two.waits(g, "v1.35.4")
		for _, process := range []string{"muster-syncer", "muster-webhook"} {
			g.Expect(env.Stop(ctx, process)).To(Succeed())
			defer func() { g.Expect(env.Start(ctx, process)).To(Succeed()) }()
		}
		_, err := env.Kubectl(ctx, "annotate", "clusters.cluster.x-k8s.io", "--all", "--all-namespaces", stamp.HookAnnotation+"-")
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) { g.Expect(two.controlPlane(g)).To(Equal("v1.35.5")) }).Should(Succeed())
	})
}

// TestChain upgrades through several versions: Cluster API asks once, before the first.
func TestChain(t *testing.T) {
	g := NewWithT(t)
	chain := upgraded{"chain"}
	chain.tell(t)
	class := strings.Replace(env.HostClusterClass("classes", "chained"), "spec:\n  infrastructure:", "spec:\n  kubernetesVersions: [v1.33.0, v1.34.0, v1.35.0]\n  infrastructure:", 1)
	g.Expect(class).To(ContainSubstring("kubernetesVersions"))
	g.Expect(env.Apply(ctx, class)).To(Succeed())
	g.Expect(env.WaitForClusterClass(ctx, "classes", "chained")).To(Succeed())
	g.Expect(env.Apply(ctx, chain.idle(202, "chained", "v1.33.0", "10m"))).To(Succeed())
	g.Eventually(func(g Gomega) { chain.says(g, "False NoUpgrade") }).Should(Succeed())
	g.Expect(chain.setVersion(g, "v1.35.0")).NotTo(BeEmpty())
	chain.upgrades(g, "AddOnsUnchanged", "v1.35.0")
	var all eventsv1.EventList
	g.Expect(admin.List(ctx, &all, client.InNamespace(team))).To(Succeed())
	ends := 0
	for _, event := range all.Items {
		if event.Regarding.Name == chain.name && event.Action == "HoldUpgrade" && event.Reason != "WaitingForAddOns" {
			ends++
			t.Logf("%s: %s", event.Reason, event.Note)
		}
	}
	g.Expect(ends).To(Equal(1))
}
