package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/stamp"
)

// endHolds runs the syncer's program as the Helm chart does before an uninstallation, with the rights of the syncer.
func endHolds(g Gomega) (string, error) {
	deployment := get(g, &appsv1.Deployment{}, "muster-system", syncerProcess)
	spec := deployment.Spec.Template.Spec
	its := &spec.Containers[0]
	its.Args, its.VolumeMounts, its.ReadinessProbe = []string{"--end-upgrade-holds", "--watch-filter=blue"}, nil, nil
	pod := named(&corev1.Pod{}, "muster-system", "muster-end-upgrade-holds")
	pod.Spec = spec
	return env.RunPod(ctx, pod)
}

// While webhook and syncer still run, all of Muster's holds end, and no others. test/channels has the Job itself.
func TestEndUpgradeHolds(t *testing.T) {
	g := NewWithT(t)
	s, refused := newScene(t, g), newScene(t, g)
	const others = stamp.HookAnnotation + "-else"
	held, paused, foreign, kept := s.holds(g, "held", "30m"), s.holds(g, "paused", "30m"), s.cluster("foreign"), refused.holds(g, "kept", "30m")
	create(g, foreign)
	for _, cluster := range []*clusterv1.Cluster{held, paused, kept} {
		reportsApplied(g, addOn(g, cluster, "cni"), false)
		g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
		willHold(g, cluster, "True WaitingForAddOns")
	}
	pause(g, paused)
	for _, cluster := range []*clusterv1.Cluster{held, foreign} {
		patch(g, cluster, entry("annotations", others, `"theirs"`))
	}
	allow := deny(t, g, kept, "clusters", "no changes on Fridays")

	out, err := endHolds(g)
	t.Log(out)
	g.Expect(err).NotTo(HaveOccurred(), "a Cluster of a tenant keeps Muster from being uninstalled")
	g.Expect(out).To(And(
		ContainSubstring("left the hold of "+refused.namespace+"/kept: "), ContainSubstring("no changes on Fridays"),
		ContainSubstring("kubectl annotate clusters.cluster.x-k8s.io --all --all-namespaces "+stamp.HookAnnotation+"-"),
	))
	isAnnounced(g, kept, "Warning", "HoldLeft")
	g.Expect(out).To(And(ContainSubstring("ended the hold of "+s.namespace+"/held\n"), ContainSubstring("ended the hold of "+s.namespace+"/paused\n")))
	g.Consistently(func(g Gomega) { // Nobody puts one back.
		isFree(g, held)
		isFree(g, paused)
	}).Should(Succeed())
	willHold(g, held, "False Released")
	for _, cluster := range []*clusterv1.Cluster{held, foreign} {
		g.Expect(current(g, cluster).Annotations).To(HaveKeyWithValue(others, "theirs"))
	}
	g.Expect(current(g, kept).Annotations).To(HaveKey(stamp.HookAnnotation))

	allow()
	g.Eventually(func(g Gomega) {
		out, err := endHolds(g)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HaveSuffix("no upgrade is held\n"))
	}).Should(Succeed())
	isFree(g, kept)
}
