package move

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// waiting is a Cluster without workers, so without an agent: its Bundle is never ready.
var waiting = types.NamespacedName{Namespace: "held", Name: "waiting"}

const waitingYAML = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata:
  namespace: %[1]s
  name: %[2]s
  annotations: {%[3]s: 20m, unsafe.topology.cluster.x-k8s.io/disable-update-version-check: ""}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.77.0.0/16]}, services: {cidrBlocks: [10.128.0.0/12]}}
  topology:
    classRef: {name: %[1]s}
    version: v1.35.0
    controlPlane: {replicas: 1}
`

func (s *side) waiting(g Gomega) *clusterv1.Cluster {
	live := &clusterv1.Cluster{}
	g.Expect(s.admin.Get(ctx, waiting, live)).To(Succeed())
	return live
}

func (s *side) patchWaiting(g Gomega, format string, args ...any) *clusterv1.Cluster {
	live := s.waiting(g)
	g.Expect(s.admin.Patch(ctx, live, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...)))).To(Succeed())
	return live
}

// says waits for a reason of the condition about holds.
func (s *side) says(g Gomega, reason string) {
	g.Eventually(func(g Gomega) {
		its := conditions.Get(s.waiting(g), addonsv1.FleetUpgradeHeldCondition)
		g.Expect(its).NotTo(BeNil())
		g.Expect(its.Reason).To(Equal(reason), its.Message)
	}).WithTimeout(soon).Should(Succeed())
}

// waits expects that Cluster API waits because of the hold, and keeps the control plane at a version.
func (s *side) waits(g Gomega, version string) {
	g.Eventually(func(g Gomega) {
		g.Expect(conditions.GetMessage(s.waiting(g), clusterv1.ClusterTopologyReconciledCondition)).To(ContainSubstring(stamp.HookAnnotation))
	}).WithTimeout(soon).Should(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(s.controlPlaneVersion(g)).To(Equal(version)) }).WithTimeout(5 * time.Second).Should(Succeed())
}

func (s *side) upgrades(g Gomega, version string) {
	g.Eventually(func(g Gomega) {
		g.Expect(s.controlPlaneVersion(g)).To(Equal(version))
		live := s.waiting(g)
		g.Expect(live.Annotations).NotTo(HaveKey(stamp.HookAnnotation))
		// Cluster API writes this annotation later than the version.
		g.Expect(live.Annotations["runtime.cluster.x-k8s.io/pending-hooks"]).To(BeEmpty(), "the upgrade is over")
		g.Expect(conditions.IsTrue(live, clusterv1.ClusterTopologyReconciledCondition)).To(BeTrue(), conditions.GetMessage(live, clusterv1.ClusterTopologyReconciledCondition))
	}).WithTimeout(soon).Should(Succeed())
}

// controlPlaneVersion returns the control plane's version, as Cluster API asks for it.
func (s *side) controlPlaneVersion(g Gomega) string {
	its := &unstructured.Unstructured{}
	its.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta2")
	its.SetKind("HostControlPlane")
	g.Expect(s.admin.Get(ctx, types.NamespacedName{Namespace: waiting.Namespace, Name: s.waiting(g).Spec.ControlPlaneRef.Name}, its)).To(Succeed())
	version, _, _ := unstructured.NestedString(its.Object, "spec", "version")
	return version
}

// uninstall removes Muster from a side, but not the holds.
func (s *side) uninstall(g Gomega) {
	for _, process := range []string{"muster-syncer", "muster-webhook"} {
		g.Expect(s.Stop(ctx, process)).To(Succeed())
	}
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = s.Kubectl(ctx, "delete", "--ignore-not-found", "--wait=false", "-k", filepath.Join(root, "manifests/default"))
	g.Expect(err).NotTo(HaveOccurred())
}

// A hold goes to the other side with its Cluster, and ends there as on the first one. A side without Muster never ends
// the hold; the command in the guide does. This test comes last: it leaves home without Muster.
func TestMoveWhileHeld(t *testing.T) {
	g := NewWithT(t)
	guide := newGuide(t)
	guide.namespace = waiting.Namespace
	for _, s := range []*side{home, away} {
		s.prepare(g)
		g.Expect(s.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+waiting.Namespace+"}}")).To(Succeed())
		g.Expect(s.Apply(ctx, fixture.DataBundle(waiting.Namespace, "never", "[{clusterName: waiting}]", "{from: never}"))).To(Succeed())
	}
	g.Expect(home.Apply(ctx, home.HostClusterClass(waiting.Namespace, waiting.Namespace))).To(Succeed())
	g.Expect(home.WaitForClusterClass(ctx, waiting.Namespace, waiting.Namespace)).To(Succeed())
	g.Expect(home.Apply(ctx, fmt.Sprintf(waitingYAML, waiting.Namespace, waiting.Name, stamp.HoldAnnotation))).To(Succeed())
	home.says(g, "NoUpgrade")
	began := home.patchWaiting(g, `{"spec":{"topology":{"version":"v1.35.1"}}}`).Annotations[stamp.HookAnnotation]
	g.Expect(began).NotTo(BeEmpty())
	home.says(g, "WaitingForAddOns")
	home.waits(g, "v1.35.0")

	t.Run("the hold goes on at a side with Muster", func(t *testing.T) {
		g := NewWithT(t)
		guide.run(t, g, home, "move")
		g.Expect(away.waiting(g).Annotations).To(HaveKeyWithValue(stamp.HookAnnotation, began))
		away.says(g, "WaitingForAddOns")
		away.waits(g, "v1.35.0")
		t.Log(conditions.GetMessage(away.waiting(g), addonsv1.FleetUpgradeHeldCondition))
	})
	t.Run("and ends by its bound", func(t *testing.T) {
		g := NewWithT(t)
		away.patchWaiting(g, `{"metadata":{"annotations":{%q:"1s"}}}`, stamp.HoldAnnotation)
		away.says(g, "BoundPassed")
		t.Log(conditions.GetMessage(away.waiting(g), addonsv1.FleetUpgradeHeldCondition))
		away.upgrades(g, "v1.35.1")
	})
	t.Run("a side without Muster keeps the topology until the command of the page", func(t *testing.T) {
		g := NewWithT(t)
		away.patchWaiting(g, `{"metadata":{"annotations":{%q:"20m"}}}`, stamp.HoldAnnotation)
		held := away.patchWaiting(g, `{"spec":{"topology":{"version":"v1.35.2"}}}`)
		g.Expect(held.Annotations).To(HaveKey(stamp.HookAnnotation))
		away.says(g, "WaitingForAddOns")
		home.uninstall(g)
		guide.run(t, g, away, "move")
		g.Expect(home.waiting(g).Annotations).To(HaveKeyWithValue(stamp.HookAnnotation, held.Annotations[stamp.HookAnnotation]))
		home.waits(g, "v1.35.1")
		t.Log(conditions.GetMessage(home.waiting(g), clusterv1.ClusterTopologyReconciledCondition))
		guide.run(t, g, home, "end")
		home.upgrades(g, "v1.35.2")
	})
}
