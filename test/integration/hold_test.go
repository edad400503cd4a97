package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
)

const nextVersion = "v1.37.0"

// holds creates an imported Cluster that asks for holds of at most this duration.
func (s scene) holds(g Gomega, name, bound string) *clusterv1.Cluster {
	cluster := s.cluster(name)
	cluster.Annotations = map[string]string{stamp.HoldAnnotation: bound}
	create(g, cluster)
	initialize(g, cluster)
	willReport(g, cluster, "True Imported")
	willHold(g, cluster, "False NoUpgrade", "v1.36.3: ")
	return cluster
}

// setVersion changes the version of a Cluster, and returns its hold as the answer has it.
func setVersion(g Gomega, cluster *clusterv1.Cluster, version string) string {
	patchf(g, cluster, `{"spec":{"topology":{"version":%q}}}`, version)
	return cluster.Annotations[stamp.HookAnnotation]
}

// willHold waits for the condition about holds: status and reason, and parts of its message.
func willHold(g Gomega, cluster *clusterv1.Cluster, state string, messages ...string) {
	g.Eventually(func(g Gomega) {
		its := conditions.Get(current(g, cluster), addonsv1.FleetUpgradeHeldCondition)
		g.Expect(its).NotTo(BeNil(), "no "+addonsv1.FleetUpgradeHeldCondition)
		g.Expect(fmt.Sprintf("%s %s", its.Status, its.Reason)).To(Equal(state), its.Message)
		for _, part := range messages {
			g.Expect(its.Message).To(ContainSubstring(part))
		}
	}).Should(Succeed())
}

// isFree expects that a Cluster has no hold.
func isFree(g Gomega, cluster *clusterv1.Cluster) {
	g.Expect(current(g, cluster).Annotations).NotTo(HaveKey(stamp.HookAnnotation))
}

// isAnnounced waits for an event about a Cluster with this type and reason.
func isAnnounced(g Gomega, cluster *clusterv1.Cluster, kind, reason string) {
	g.Eventually(func(g Gomega) {
		var all eventsv1.EventList
		g.Expect(admin.List(ctx, &all, client.InNamespace(cluster.Namespace))).To(Succeed())
		g.Expect(all.Items).To(ContainElement(And(HaveField("Reason", reason), HaveField("Type", kind), HaveField("Regarding.Name", cluster.Name))))
	}).Should(Succeed())
}

// addOn plays Fleet: it deploys a Bundle with values of its own to a Cluster, where it is ready.
func addOn(g Gomega, cluster *clusterv1.Cluster, name string) *fleetv1.BundleDeployment {
	namespace := stamp.FleetNamespace(cluster.Namespace, cluster.Name)
	g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
	its := named(&fleetv1.BundleDeployment{}, namespace, name)
	its.Labels = map[string]string{
		fleetv1.BundleLabel: name, fleetv1.BundleNamespaceLabel: cluster.Namespace,
		fleetv1.ClusterLabel: cluster.Name, fleetv1.ClusterNamespaceLabel: cluster.Namespace,
	}
	its.Spec.ValuesHash = "sha256:1"
	create(g, its)
	deploy(g, its, "1")
	reportsApplied(g, its, true)
	return its
}

// deploy plays Fleet's controller, and reportsApplied its agent.
func deploy(g Gomega, its *fleetv1.BundleDeployment, id string) {
	patchf(g, its, `{"spec":{"deploymentID":%[1]q,"stagedDeploymentID":%[1]q}}`, id)
}

func reportsApplied(g Gomega, its *fleetv1.BundleDeployment, isReady bool) {
	g.Expect(admin.Status().Patch(ctx, its, mergePatch(fmt.Sprintf(`{"status":{"appliedDeploymentID":%q,"ready":%t}}`, its.Spec.DeploymentID, isReady)))).To(Succeed())
}

// An upgrade waits for its add-on, and for nothing longer.
func TestUpgradeWaitsForItsAddOn(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.holds(g, "one", "30m")
	its := addOn(g, cluster, "cni")
	time.Sleep(1100 * time.Millisecond) // Times of changes have whole seconds: this one is no change for the version.
	began, isHold := hold.Parse(setVersion(g, cluster, nextVersion))
	g.Expect(isHold).To(BeTrue(), "the answer carries the hold")
	g.Expect([]string{began.From, began.To}).To(Equal([]string{"v1.36.3", nextVersion}))
	willHold(g, cluster, "True WaitingForAddOns", "v1.36.3 to v1.37.0: ", "may still change: Bundle cni")
	isAnnounced(g, cluster, "Normal", "WaitingForAddOns")
	// Neither Fleet nor a template sees the hold.
	g.Eventually(func(g Gomega) {
		fleet := fleetCluster(g, s.namespace, "one")
		g.Expect(fleet.Annotations).NotTo(HaveKey(stamp.HookAnnotation))
		values := fleet.Spec.TemplateValues.Data["Cluster"].(map[string]any)
		g.Expect(values["metadata"].(map[string]any)["annotations"]).NotTo(HaveKey(stamp.HookAnnotation))
		g.Expect(values["spec"].(map[string]any)["topology"]).To(HaveKeyWithValue("version", nextVersion))
	}).Should(Succeed())

	deploy(g, its, "2")
	g.Consistently(func(g Gomega) { g.Expect(current(g, cluster).Annotations).To(HaveKey(stamp.HookAnnotation)) }).WithTimeout(4 * time.Second).Should(Succeed())
	reportsApplied(g, its, true)
	ready := time.Now()
	g.Eventually(func(g Gomega) { isFree(g, cluster) }).Should(Succeed())
	t.Logf("released %s after the add-on was ready", time.Since(ready).Round(10*time.Millisecond))
	willHold(g, cluster, "False AddOnsReady", "v1.36.3 to v1.37.0: ")
	isAnnounced(g, cluster, "Normal", "AddOnsReady")
}

// A version that changes no value holds nothing up. Where Fleet may still change values, Muster waits as long as Fleet
// needs to see the version.
func TestUpgradeWithoutAddOns(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster, other := s.holds(g, "one", "30m"), s.holds(g, "two", "30m")
	static := addOn(g, cluster, "static")
	patch(g, static, `{"spec":{"valuesHash":null}}`)
	addOn(g, other, "values")
	time.Sleep(1100 * time.Millisecond) // Times of changes have whole seconds: this one is no change for the version.
	begin := time.Now()
	g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
	g.Expect(setVersion(g, other, nextVersion)).NotTo(BeEmpty())
	willHold(g, cluster, "False AddOnsUnchanged", "v1.36.3 to v1.37.0: ")
	isFree(g, cluster)
	t.Logf("released %s after the change", time.Since(begin).Round(10*time.Millisecond))
	willHold(g, other, "False AddOnsUnchanged")
	isFree(g, other)
	t.Logf("with values that may change, released %s after the change", time.Since(begin).Round(10*time.Millisecond))
	g.Expect(time.Since(begin)).To(BeNumerically(">", 14*time.Second))
}

func TestBoundOfAHold(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.holds(g, "one", "6s")
	reportsApplied(g, addOn(g, cluster, "cni"), false)
	g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
	willHold(g, cluster, "True WaitingForAddOns", "not ready: Bundle cni")
	willHold(g, cluster, "False BoundPassed", "6s", "Bundle cni")
	isFree(g, cluster)
	isAnnounced(g, cluster, "Warning", "BoundPassed")
}

// A hold ends when it has no purpose any more, and survives interference.
func TestHoldsThatEnd(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	scene := func(t *testing.T, name string) (*GomegaWithT, *clusterv1.Cluster) {
		t.Helper()
		t.Parallel()
		g := NewWithT(t)
		cluster := s.holds(g, name, "30m")
		reportsApplied(g, addOn(g, cluster, "cni"), false)
		g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
		willHold(g, cluster, "True WaitingForAddOns")
		return g, cluster
	}
	const others = "before-upgrade.hook.cluster.cluster.x-k8s.io/else"
	t.Run("a PUT drops it", func(t *testing.T) {
		g, cluster := scene(t, "put")
		has := current(g, cluster).Annotations[stamp.HookAnnotation]
		var old *clusterv1.Cluster
		g.Eventually(func(g Gomega) { // Others change the Cluster as well.
			old = current(g, cluster)
			delete(old.Annotations, stamp.HookAnnotation)
			g.Expect(admin.Update(ctx, old)).To(Succeed())
		}).Should(Succeed())
		g.Expect(old.Annotations).To(HaveKeyWithValue(stamp.HookAnnotation, has))
	})
	t.Run("the version is changed back", func(t *testing.T) {
		g, cluster := scene(t, "back")
		patch(g, cluster, entry("annotations", others, `"x"`))
		g.Expect(setVersion(g, cluster, "v1.36.3")).To(BeEmpty(), "the request ends the hold")
		willHold(g, cluster, "False Reverted", "v1.36.3: ")
		g.Expect(current(g, cluster).Annotations).To(HaveKey(others), "a hold of others")
		// The next one is held again.
		g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
		willHold(g, cluster, "True WaitingForAddOns")
	})
	t.Run("a second version", func(t *testing.T) {
		g, cluster := scene(t, "twice")
		again, _ := hold.Parse(setVersion(g, cluster, "v1.38.0"))
		g.Expect([]string{again.From, again.To}).To(Equal([]string{"v1.36.3", "v1.38.0"}))
		willHold(g, cluster, "True WaitingForAddOns", "v1.36.3 to v1.38.0: ")
	})
	t.Run("opted out", func(t *testing.T) {
		g, cluster := scene(t, "out")
		patch(g, cluster, entry("annotations", stamp.HoldAnnotation, "null"))
		g.Expect(cluster.Annotations).NotTo(HaveKey(stamp.HookAnnotation), "the request ends the hold")
		g.Eventually(func(g Gomega) {
			g.Expect(conditions.Get(current(g, cluster), addonsv1.FleetUpgradeHeldCondition)).To(BeNil())
		}).Should(Succeed())
		isAnnounced(g, cluster, "Normal", "OptedOut")
	})
	t.Run("Cluster API upgrades all the same", func(t *testing.T) {
		g, cluster := scene(t, "sdk")
		patchf(g, target("controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane", s.namespace, "sdk-cp"), `{"spec":{"version":%q}}`, nextVersion)
		willHold(g, cluster, "False NotHeld", "RuntimeSDK")
		isFree(g, cluster)
		isAnnounced(g, cluster, "Warning", "NotHeld")
	})
	t.Run("paused meanwhile", func(t *testing.T) {
		g, cluster := scene(t, "paused")
		pause(g, cluster)
		patch(g, cluster, entry("annotations", stamp.HoldAnnotation, `"1s"`))
		g.Consistently(func(g Gomega) { g.Expect(current(g, cluster).Annotations).To(HaveKey(stamp.HookAnnotation)) }).Should(Succeed())
		unpause(g, cluster)
		willHold(g, cluster, "False BoundPassed")
		isFree(g, cluster)
	})
	t.Run("its add-on is ready while it is paused", func(t *testing.T) {
		g, cluster := scene(t, "waited")
		pause(g, cluster)
		its := get(g, &fleetv1.BundleDeployment{}, stamp.FleetNamespace(s.namespace, "waited"), "cni")
		deploy(g, its, "2")
		reportsApplied(g, its, true)
		g.Consistently(func(g Gomega) { g.Expect(current(g, cluster).Annotations).To(HaveKey(stamp.HookAnnotation)) }).WithTimeout(4 * time.Second).Should(Succeed())
		unpause(g, cluster)
		willHold(g, cluster, "False AddOnsReady")
		isFree(g, cluster)
	})
	t.Run("its Cluster is deleted", func(t *testing.T) {
		g, cluster := scene(t, "deleted")
		deleteNow(g, cluster)
	})
}

// Clusters whose upgrade is never held.
func TestNeverHeld(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	t.Run("not in Fleet", func(t *testing.T) {
		g := NewWithT(t)
		cluster := s.cluster("waiting")
		cluster.Annotations = map[string]string{stamp.HoldAnnotation: "30m"}
		create(g, cluster)
		g.Expect(setVersion(g, cluster, nextVersion)).To(BeEmpty())
	})
	t.Run("paused", func(t *testing.T) {
		g := NewWithT(t)
		cluster := s.holds(g, "paused", "30m")
		pause(g, cluster)
		g.Expect(setVersion(g, cluster, nextVersion)).To(BeEmpty())
		unpause(g, cluster)
		willHold(g, cluster, "False NotHeld", "v1.36.3 to v1.37.0: ")
	})
	t.Run("upgrading already", func(t *testing.T) {
		g := NewWithT(t)
		cluster := s.holds(g, "upgrading", "30m")
		patch(g, cluster, entry("annotations", "runtime.cluster.x-k8s.io/pending-hooks", `"AfterClusterUpgrade"`))
		g.Expect(setVersion(g, cluster, nextVersion)).To(BeEmpty())
	})
	t.Run("nobody asks", func(t *testing.T) {
		g := NewWithT(t)
		cluster := s.imported(g, "plain")
		willReport(g, cluster, "True Imported")
		g.Expect(setVersion(g, cluster, nextVersion)).To(BeEmpty())
		forged := hold.Hold{From: "v1.36.3", To: nextVersion, Since: time.Now()}.String()
		patchf(g, cluster, `{"metadata":{"annotations":{%q:%q}}}`, stamp.HookAnnotation, forged)
		g.Expect(cluster.Annotations).NotTo(HaveKey(stamp.HookAnnotation), "a request brings none of its own")
		g.Expect(conditions.Get(current(g, cluster), addonsv1.FleetUpgradeHeldCondition)).To(BeNil())
	})
}

// A ClusterClass asks for all of its Clusters.
func TestHoldByClass(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster, other, paused := s.imported(g, "one"), s.imported(g, "two"), s.imported(g, "three")
	patch(g, other, entry("annotations", stamp.HoldAnnotation, `"0"`))
	willReport(g, paused, "True Imported")
	pause(g, paused)
	patch(g, s.class, entry("annotations", stamp.HoldAnnotation, `"30m"`))
	willHold(g, cluster, "False NoUpgrade", "30m")
	g.Expect(current(g, paused).Annotations).NotTo(HaveKey(stamp.ClassHoldAnnotation))
	unpause(g, paused)
	willHold(g, paused, "False NoUpgrade", "30m")
	reportsApplied(g, addOn(g, cluster, "cni"), false)
	g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
	g.Expect(setVersion(g, other, nextVersion)).To(BeEmpty(), "the Cluster has the last word")
	willHold(g, cluster, "True WaitingForAddOns")
	patch(g, s.class, entry("annotations", stamp.HoldAnnotation, "null"))
	g.Eventually(func(g Gomega) {
		isFree(g, cluster)
		g.Expect(current(g, cluster).Annotations).NotTo(HaveKey(stamp.ClassHoldAnnotation))
		g.Expect(conditions.Get(current(g, cluster), addonsv1.FleetUpgradeHeldCondition)).To(BeNil())
	}).Should(Succeed())
}

// A hold survives the syncer, and its end does not depend on the webhook.
func TestHoldWithoutPrograms(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	t.Run("the syncer is killed while an upgrade is held", func(t *testing.T) {
		g := NewWithT(t)
		g.SetDefaultEventuallyTimeout(time.Minute) // A syncer that was killed leaves its Lease behind.
		cluster := s.holds(g, "killed", "30m")
		its := addOn(g, cluster, "cni")
		reportsApplied(g, its, false)
		g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
		willHold(g, cluster, "True WaitingForAddOns")
		g.Expect(env.Kill(ctx, syncerProcess)).To(Succeed())
		time.Sleep(1100 * time.Millisecond) // Times of changes have whole seconds.
		deploy(g, its, "2")
		reportsApplied(g, its, true)
		g.Expect(current(g, cluster).Annotations).To(HaveKey(stamp.HookAnnotation))
		g.Expect(env.Start(ctx, syncerProcess)).To(Succeed())
		willHold(g, cluster, "False AddOnsReady")
		isFree(g, cluster)
	})
	t.Run("a class asks while the syncer is down", func(t *testing.T) {
		g := NewWithT(t)
		s := newScene(t, g)
		cluster := s.imported(g, "one")
		willReport(g, cluster, "True Imported")
		restart := stop(t, g, syncerProcess)
		patch(g, s.class, entry("annotations", stamp.HoldAnnotation, `"30m"`))
		restart()
		willHold(g, cluster, "False NoUpgrade", "30m")
		restart = stop(t, g, syncerProcess)
		patch(g, s.class, entry("annotations", stamp.HoldAnnotation, "null"))
		restart()
		g.Eventually(func(g Gomega) {
			g.Expect(current(g, cluster).Annotations).NotTo(HaveKey(stamp.ClassHoldAnnotation))
			g.Expect(conditions.Get(current(g, cluster), addonsv1.FleetUpgradeHeldCondition)).To(BeNil())
		}).Should(Succeed())
	})
	t.Run("the webhook is down", func(t *testing.T) {
		g := NewWithT(t)
		cluster, held, foreign := s.holds(g, "down", "30m"), s.holds(g, "held", "30m"), s.holds(g, "foreign", "30m")
		for _, its := range []*clusterv1.Cluster{held, foreign} {
			reportsApplied(g, addOn(g, its, "cni"), false)
			g.Expect(setVersion(g, its, nextVersion)).NotTo(BeEmpty())
		}
		stop(t, g, webhookProcess)
		g.Expect(setVersion(g, cluster, nextVersion)).To(BeEmpty())
		willHold(g, cluster, "False NotHeld", "v1.36.3 to v1.37.0: ", "webhook")
		isAnnounced(g, cluster, "Warning", "NotHeld")
		patch(g, held, entry("annotations", stamp.HoldAnnotation, "null"))
		patch(g, foreign, entry("annotations", stamp.HookAnnotation, `"somebody's"`))
		g.Eventually(func(g Gomega) {
			isFree(g, held)
			isFree(g, foreign)
		}).Should(Succeed())
		willHold(g, foreign, "False InvalidHold")
	})
}

// A syncer leaves a hold outside its watch filter to another one, until the hold is overdue.
func TestHoldOutsideTheFilter(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	filtered(t, g, "blue")
	held, its := s.cluster("held"), s.cluster("its")
	for cluster, filter := range map[*clusterv1.Cluster]string{held: "blue", its: "red"} {
		cluster.Labels = map[string]string{clusterv1.WatchLabel: filter}
		cluster.Annotations = map[string]string{stamp.HoldAnnotation: "30m"}
		create(g, cluster)
	}
	imported := fmt.Sprintf(`{"status":{"conditions":[{"type":"FleetImported","status":"True","reason":"Imported","message":"","lastTransitionTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
	g.Expect(admin.Status().Patch(ctx, its, mergePatch(imported))).To(Succeed()) // By the other syncer.
	initialize(g, held)
	willHold(g, held, "False NoUpgrade")
	reportsApplied(g, addOn(g, held, "cni"), false)
	for _, cluster := range []*clusterv1.Cluster{held, its} {
		g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
	}
	willHold(g, held, "True WaitingForAddOns")
	patch(g, held, entry("labels", clusterv1.WatchLabel, "null"))

	patch(g, s.class, entry("annotations", stamp.HoldAnnotation, `"1h"`)) // It wakes the Clusters of the class.
	g.Consistently(func(g Gomega) {
		now := current(g, its)
		g.Expect(now.Annotations).To(HaveKey(stamp.HookAnnotation))
		g.Expect(now.Annotations).NotTo(HaveKey(stamp.ClassHoldAnnotation))
		g.Expect(conditions.Get(now, addonsv1.FleetUpgradeHeldCondition)).To(BeNil())
		g.Expect(current(g, held).Annotations).To(HaveKey(stamp.HookAnnotation))
	}).Should(Succeed())

	stop(t, g, webhookProcess) // Otherwise nobody could change a hold.
	overdue := hold.Hold{From: "v1.36.3", To: nextVersion, Since: time.Now().Add(-36 * time.Minute)}.String()
	for _, cluster := range []*clusterv1.Cluster{held, its} {
		patch(g, cluster, entry("annotations", stamp.HookAnnotation, fmt.Sprintf("%q", overdue)))
		willHold(g, cluster, "False BoundPassed")
		isFree(g, cluster)
		isAnnounced(g, cluster, "Warning", "BoundPassed")
	}
}

// release creates a HelmReleaseProxy on a Cluster, and says in its record whether it is installed.
func release(g Gomega, of *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster, name string, isInstalled bool) *addonsv1.HelmReleaseProxy {
	its := named(&addonsv1.HelmReleaseProxy{}, of.Namespace, name)
	its.Labels, its.Finalizers = map[string]string{clusterv1.ClusterNameLabel: cluster.Name}, []string{plan.Finalizer}
	its.Annotations = map[string]string{plan.RecordAnnotation: plan.Record{Installed: isInstalled}.String()}
	its.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of, addonsv1.GroupVersion.WithKind("HelmChartProxy"))}
	its.Spec.ClusterRef = corev1.ObjectReference{Namespace: cluster.Namespace, Name: cluster.Name}
	its.Spec.ChartName, its.Spec.RepoURL, its.Spec.ReleaseNamespace = of.Spec.ChartName, of.Spec.RepoURL, "default"
	create(g, its)
	return its
}

// The releases on a Cluster count, however many there are, as long as their HelmChartProxies select the Cluster; also
// those that do not exist yet.
// muster-helm does not run.
func TestHoldForReleases(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	for _, name := range []string{"helmchartproxies", "helmreleaseproxies"} {
		file := "../../manifests/helm/addons.cluster.x-k8s.io_" + name + ".yaml"
		_, err := env.Kubectl(ctx, "apply", "-f", file)
		g.Expect(err).NotTo(HaveOccurred())
		deleteByKubectl(t, "-f", file)
	}
	of := named(&addonsv1.HelmChartProxy{}, s.namespace, "web")
	of.Spec = addonsv1.HelmChartProxySpec{RepoURL: "https://charts.example.com", ChartName: "web", ReconcileStrategy: addonsv1.ReconcileStrategyInstallOnce}
	of.Spec.ClusterSelector.MatchLabels = map[string]string{"addon": "yes"}
	of.Finalizers = []string{plan.Finalizer} // Otherwise it counts in its first minute only.
	g.Eventually(func(g Gomega) { create(g, of) }).Should(Succeed())
	var all []client.Object
	t.Cleanup(func() {
		for _, its := range append(all, of) {
			patch(g, its, `{"metadata":{"finalizers":null}}`)
		}
	})
	many, leaving, joining := s.holds(g, "many", "30m"), s.holds(g, "leaving", "30m"), s.holds(g, "joining", "30m")
	for _, cluster := range []*clusterv1.Cluster{many, leaving} {
		patch(g, cluster, entry("labels", "addon", `"yes"`))
	}
	const pages = 50 // The syncer reads 20 at a time.
	for i := range pages {
		all = append(all, release(g, of, many, fmt.Sprintf("web-%02d", i), i < pages-1))
	}
	all = append(all, release(g, of, leaving, "leaving", false))

	g.Expect(setVersion(g, many, nextVersion)).NotTo(BeEmpty())
	patchf(g, leaving, `{"metadata":{"labels":{"addon":null}},"spec":{"topology":{"version":%q}}}`, nextVersion)
	g.Expect(leaving.Annotations).To(HaveKey(stamp.HookAnnotation))
	patchf(g, joining, `{"metadata":{"labels":{"addon":"yes"}},"spec":{"topology":{"version":%q}}}`, nextVersion)
	willHold(g, many, "True WaitingForAddOns", "not ready: HelmChartProxy web")
	willHold(g, leaving, "False AddOnsUnchanged") // After the time that Fleet needs for other labels.
	g.Expect(current(g, many).Annotations).To(HaveKey(stamp.HookAnnotation))
	willHold(g, joining, "True WaitingForAddOns", "not ready: HelmChartProxy web") // Longer than for other labels.
	all = append(all, release(g, of, joining, "joining", true))
	willHold(g, joining, "False AddOnsReady")
	last := all[pages-1]
	patchf(g, last, `{"metadata":{"annotations":{%q:%q}}}`, plan.RecordAnnotation, plan.Record{Installed: true}.String())
	willHold(g, many, "False AddOnsUnchanged")
	isFree(g, many)
}

// Without the webhook, the policy alone keeps the syncer's token from freezing topologies.
func TestSyncerTokenBeginsNoHold(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	cluster, held := target(capiVersion, "Cluster", s.namespace, "one"), s.cluster("held")
	held.Annotations = map[string]string{stamp.HookAnnotation: "x"}
	held.Spec.Paused = ptr.To(true)
	withoutWebhooks(t, g, named(&admissionregistrationv1.MutatingWebhookConfiguration{}, "", "muster-mutating-webhook"))
	g.Eventually(func(g Gomega) { // The API server asks the webhook, which takes the annotation off, for a moment longer.
		tried := held.DeepCopy()
		g.Expect(admin.Create(ctx, tried, client.DryRunAll)).To(Succeed())
		g.Expect(tried.Annotations).To(HaveKey(stamp.HookAnnotation))
	}).Should(Succeed())
	create(g, held)
	tryAll(t, thief(g), "ValidatingAdmissionPolicy 'muster-syncer-clusters'", []deed{
		{"may not begin a hold", cluster, entry("annotations", stamp.HookAnnotation, `"x"`), "reserved domain to a Cluster: " + stamp.HookAnnotation},
		{"may not change a hold", held, entry("annotations", stamp.HookAnnotation, `"y"`), "may not change or remove labels and annotations of a Cluster: " + stamp.HookAnnotation},
		{"may end a hold", held, entry("annotations", stamp.HookAnnotation, "null"), ""},
	})
}
