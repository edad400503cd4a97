package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

const topologyYAML = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata:
  namespace: %s
  name: %s
spec:
  topology:
    classRef: {name: %s, namespace: %s}
    version: v1.36.3
`

// scene is a class in one namespace and room for Clusters in another.
type scene struct {
	classNamespace, namespace string
	class                     *clusterv1.ClusterClass
}

func newScene(t *testing.T, g Gomega) scene {
	t.Helper()
	s := scene{classNamespace: newNamespace(t, g, "classes", nil), namespace: newNamespace(t, g, "team", nil)}
	s.class = newClass(g, s.classNamespace, "standard", nil)
	return s
}

// imported creates a Cluster of the scene's class and waits until it is in Fleet.
func (s scene) imported(g Gomega, name string) *clusterv1.Cluster {
	cluster := fixture.Cluster(s.namespace, name, s.class.Name, s.class.Namespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, name) }).Should(Succeed())
	return cluster
}

func (s scene) group() *fleetv1.ClusterGroup {
	return &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "standard." + s.classNamespace}}
}

func (s scene) mapping() *fleetv1.BundleNamespaceMapping {
	return &fleetv1.BundleNamespaceMapping{ObjectMeta: metav1.ObjectMeta{Namespace: s.classNamespace, Name: s.namespace}}
}

func exists(g Gomega, object client.Object) {
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed(), "%T should exist", object)
}

func isGone(g Gomega, object client.Object) {
	err := admin.Get(ctx, client.ObjectKeyFromObject(object), object)
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%T %s should be gone, got %v", object, client.ObjectKeyFromObject(object), err)
}

func deleteNow(g Gomega, objects ...client.Object) {
	for _, object := range objects {
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, object))).To(Succeed())
	}
	for _, object := range objects {
		// At once: nothing of ours holds it.
		g.Eventually(func(g Gomega) { isGone(g, object) }).WithTimeout(5 * time.Second).Should(Succeed())
	}
}

func stop(t *testing.T, g Gomega, process string) (restart func()) {
	t.Helper()
	g.Expect(env.Stop(ctx, process)).To(Succeed())
	stopped := true
	restart = func() {
		if stopped {
			stopped = false
			g.Expect(env.Start(ctx, process)).To(Succeed())
		}
	}
	t.Cleanup(restart)
	return restart
}

func importedCondition(g Gomega, cluster *clusterv1.Cluster) *metav1.Condition {
	current := get(g, &clusterv1.Cluster{}, cluster.Namespace, cluster.Name)
	condition := conditions.Get(current, "FleetImported")
	g.Expect(condition).NotTo(BeNil(), "no FleetImported in %v", current.Status.Conditions)
	return condition
}

func TestApplyReturnsTheStamp(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	out, err := apply(t, fmt.Sprintf(topologyYAML, s.namespace, "one", "standard", s.classNamespace), "-o", "yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for _, line := range []string{
		stamp.ClassNameLabel + ": standard",
		stamp.ClassNamespaceLabel + ": " + s.classNamespace,
		stamp.OwnedByAnnotation + ": fleet-addon-config",
		stamp.ClusterNameAnnotation + ": one",
	} {
		g.Expect(out).To(ContainSubstring(line))
	}
}

func TestApplyWithoutTheWebhook(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	newClass(g, s.namespace, "own", nil)
	restart := stop(t, g, webhookProcess)
	defer restart()

	// Of a class beside it: who may use one from elsewhere nobody can tell now.
	out, err := apply(t, fmt.Sprintf(topologyYAML, s.namespace, "one", "own", s.namespace), "-o", "yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).NotTo(ContainSubstring(stamp.ClusterNameAnnotation))
	g.Eventually(func(g Gomega) {
		cluster := get(g, &clusterv1.Cluster{}, s.namespace, "one")
		g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "own"))
		g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{OwnedBy: "fleet-addon-config", ClusterName: "one"}))
	}).Should(Succeed())
}

func TestThePinSurvivesUpdates(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: "late-"}}})

	before := cluster.DeepCopy()
	delete(cluster.Annotations, stamp.ClusterNameAnnotation)
	cluster.Labels[stamp.ClassNameLabel] = "forged"
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	g.Expect(cluster.Annotations).To(HaveKeyWithValue(stamp.ClusterNameAnnotation, "one"))
	g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))

	t.Run("and with the webhook down", func(t *testing.T) {
		g := NewWithT(t)
		defer stop(t, g, webhookProcess)()
		before := cluster.DeepCopy()
		delete(cluster.Annotations, stamp.ClusterNameAnnotation)
		delete(cluster.Annotations, stamp.OwnedByAnnotation)
		g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(stamp.PinOf(get(g, &clusterv1.Cluster{}, s.namespace, "one").Annotations).ClusterName).To(Equal("one"))
		}).Should(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "late-one"}, &fleetv1.Cluster{})).NotTo(Succeed())
		}).Should(Succeed())
	})
}

func TestControlPlaneChangeReachesTheValues(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	controlPlane := object(g, fmt.Sprintf(
		`{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlane, metadata: {namespace: %s, name: one-cp}}`, s.namespace))
	g.Expect(admin.Patch(ctx, controlPlane, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":3}}`)))).To(Succeed())
	g.Eventually(func(g Gomega) {
		values := fleetCluster(g, s.namespace, cluster.Name).Spec.TemplateValues.Data
		g.Expect(values["ControlPlane"].(map[string]any)["spec"]).To(HaveKeyWithValue("replicas", BeNumerically("==", 3)))
	}).Should(Succeed())

	t.Run("and the last good values stay when it is gone", func(t *testing.T) {
		g := NewWithT(t)
		deleteNow(g, controlPlane)
		g.Eventually(func(g Gomega) {
			condition := importedCondition(g, cluster)
			g.Expect(condition.Reason).To(Equal("TemplateValuesUnresolved"))
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(condition.Message).To(ContainSubstring("one-cp"))
		}).Should(Succeed())
		g.Expect(fleetCluster(g, s.namespace, "one").Spec.TemplateValues.Data).To(HaveKey("ControlPlane"))
	})
}

func TestDeleteFinishesAtOnce(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("syncer running: %v", running), func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			one, two := s.imported(g, "one"), s.imported(g, "two")
			g.Eventually(func(g Gomega) {
				g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).To(HaveLen(1))
			}).Should(Succeed())
			restart := func() {}
			if !running {
				restart = stop(t, g, syncerProcess)
			}
			deleteNow(g, one)
			if running {
				g.Consistently(func(g Gomega) { exists(g, s.group()); exists(g, s.mapping()) }).Should(Succeed())
			}
			deleteNow(g, two, s.class)
			restart()
			g.Eventually(func(g Gomega) {
				isGone(g, s.group())
				isGone(g, s.mapping())
				isGone(g, &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: s.classNamespace, Name: "standard"}})
				isGone(g, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "one"}})
				isGone(g, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "two"}})
				g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).To(BeEmpty())
			}).Should(Succeed())
		})
	}
}

func TestRebase(t *testing.T) {
	g := NewWithT(t)
	from, to := newScene(t, g), newScene(t, g)
	cluster := from.imported(g, "one")
	to.namespace = from.namespace

	before := cluster.DeepCopy()
	cluster.Spec.Topology.ClassRef.Namespace = to.classNamespace
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, to.classNamespace))
	g.Eventually(func(g Gomega) {
		exists(g, to.group())
		exists(g, to.mapping())
		isGone(g, from.group())
		isGone(g, from.mapping())
		g.Expect(fleetCluster(g, from.namespace, "one").Labels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, to.classNamespace))
	}).Should(Succeed())
}

func TestRemovedLabelsAreRemoved(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setLabels := func(object client.Object, labels map[string]string) {
		before := object.DeepCopyObject().(client.Object)
		object.SetLabels(labels)
		g.Expect(admin.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
	}
	cluster := s.imported(g, "one")
	setLabels(s.class, map[string]string{"tier": "gold"})
	setLabels(cluster, map[string]string{"env": "prod"})
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(And(HaveKeyWithValue("tier", "gold"), HaveKeyWithValue("env", "prod")))
		group := s.group()
		exists(g, group)
		g.Expect(group.Labels).To(HaveKeyWithValue("tier", "gold"))
	}).Should(Succeed())
	setLabels(s.class, nil)
	setLabels(cluster, nil)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Labels).NotTo(Or(HaveKey("tier"), HaveKey("env")))
		group := s.group()
		exists(g, group)
		g.Expect(group.Labels).NotTo(HaveKey("tier"))
	}).Should(Succeed())
}

func TestWhatOthersChangeIsPutBack(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	imported := fleetCluster(g, s.namespace, "one")
	before := imported.DeepCopy()
	imported.Spec.AgentNamespace = "elsewhere"
	imported.Labels["added"] = "by-hand"
	g.Expect(admin.Patch(ctx, imported, client.MergeFrom(before))).To(Succeed())
	deleteNowOrReplaced(g, s.group(), s.mapping())
	g.Eventually(func(g Gomega) {
		current := fleetCluster(g, s.namespace, "one")
		g.Expect(current.Spec.AgentNamespace).To(Equal("fleet-addon-agent"))
		g.Expect(current.Labels).To(HaveKeyWithValue("added", "by-hand"))
		g.Expect(current.UID).To(Equal(imported.UID))
		exists(g, s.group())
		exists(g, s.mapping())
	}).Should(Succeed())
	g.Expect(admin.Delete(ctx, imported)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").UID).NotTo(Equal(imported.UID))
	}).Should(Succeed())
}

func deleteNowOrReplaced(g Gomega, objects ...client.Object) {
	for _, object := range objects {
		exists(g, object)
		before := object.GetUID()
		g.Expect(admin.Delete(ctx, object)).To(Succeed())
		g.Eventually(func(g Gomega) {
			exists(g, object)
			g.Expect(object.GetUID()).NotTo(Equal(before))
		}).Should(Succeed())
	}
}

func TestPausedAndNameConflict(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := fixture.Cluster(s.namespace, "one", "standard", s.classNamespace)
	cluster.Spec.Paused = ptr.To(true)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	// The Cluster came first, or its name would have been refused.
	foreign := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "one"}}
	g.Expect(admin.Create(ctx, foreign)).To(Succeed())
	initialize(g, cluster)
	g.Eventually(func(g Gomega) { g.Expect(importedCondition(g, cluster).Reason).To(Equal("Paused")) }).Should(Succeed())

	before := cluster.DeepCopy()
	cluster.Spec.Paused = nil
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) {
		condition := importedCondition(g, cluster)
		g.Expect(condition.Reason).To(Equal("NameConflict"))
		g.Expect(condition.Message).To(ContainSubstring(stamp.AdoptAnnotation))
	}).Should(Succeed())
	g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(BeEmpty())

	patched := foreign.DeepCopy()
	patched.Annotations = map[string]string{stamp.AdoptAnnotation: "true"}
	g.Expect(admin.Patch(ctx, patched, client.MergeFrom(foreign))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(importedCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue))
		g.Expect(fleetCluster(g, s.namespace, "one").UID).To(Equal(foreign.UID))
	}).Should(Succeed())
}

// clusterctl move pauses a Cluster, copies it elsewhere, and deletes the original with
// its finalizers. The applications of a cluster that lives on must stay.
func TestMovedAwayKeepsItsApplications(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(HaveLen(1))

	pause := func(paused *bool) {
		before := cluster.DeepCopy()
		cluster.Spec.Paused = paused
		g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	}
	pause(ptr.To(true))
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(BeEmpty())
		g.Expect(importedCondition(g, cluster).Reason).To(Equal("Paused"))
		g.Expect(importedCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue))
	}).Should(Succeed())

	pause(nil)
	g.Eventually(func(g Gomega) {
		current := fleetCluster(g, s.namespace, "one")
		g.Expect(current.OwnerReferences).To(HaveLen(1))
		g.Expect(current.Annotations).NotTo(HaveKey("fleet.addons.cluster.x-k8s.io/released"))
	}).Should(Succeed())

	pause(ptr.To(true))
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(BeEmpty()) }).Should(Succeed())
	uid := fleetCluster(g, s.namespace, "one").UID
	before := cluster.DeepCopy()
	cluster.Annotations["clusterctl.cluster.x-k8s.io/delete-for-move"] = ""
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	deleteNow(g, cluster)
	g.Consistently(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").UID).To(Equal(uid))
		exists(g, s.group())
		exists(g, s.mapping())
	}).WithTimeout(4 * time.Second).Should(Succeed())

	t.Run("until somebody deletes what is left", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(admin.Delete(ctx, fleetCluster(g, s.namespace, "one"))).To(Succeed())
		g.Eventually(func(g Gomega) { isGone(g, s.group()); isGone(g, s.mapping()) }).Should(Succeed())
	})
}

func TestDeselection(t *testing.T) {
	for _, policy := range []addonsv1.DeselectPolicy{addonsv1.DeselectKeep, addonsv1.DeselectDelete} {
		t.Run(string(policy), func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			cluster := s.imported(g, "one")
			uid := fleetCluster(g, s.namespace, "one").UID
			setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
				OnDeselect: policy,
				// Other tests' Clusters stay selected.
				Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "leave", Operator: metav1.LabelSelectorOpDoesNotExist}}},
			}})
			before := cluster.DeepCopy()
			cluster.Labels["leave"] = "yes"
			g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())

			if policy == addonsv1.DeselectKeep {
				g.Eventually(func(g Gomega) { g.Expect(importedCondition(g, cluster).Reason).To(Equal("Deselected")) }).Should(Succeed())
				g.Consistently(func(g Gomega) {
					current := fleetCluster(g, s.namespace, "one")
					g.Expect(current.UID).To(Equal(uid))
					g.Expect(current.Labels).NotTo(HaveKey("leave"))
					exists(g, s.mapping())
				}).Should(Succeed())
				return
			}
			g.Eventually(func(g Gomega) {
				isGone(g, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "one"}})
				isGone(g, s.group())
				isGone(g, s.mapping())
				current := get(g, &clusterv1.Cluster{}, s.namespace, "one")
				g.Expect(stamp.PinOf(current.Annotations)).To(Equal(stamp.Pin{}))
				g.Expect(current.Labels).To(HaveKey(stamp.ClassNameLabel))
				g.Expect(conditions.Get(current, "FleetImported")).To(BeNil())
			}).Should(Succeed())
		})
	}
}

// The status of the FleetAddonConfig counts what the Clusters themselves say.
func TestConfigStatusCounts(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{})
	s.imported(g, "one")
	waiting := fixture.Cluster(s.namespace, "two", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, waiting)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(importedCondition(g, waiting).Reason).To(Equal("WaitingForControlPlane"))
		counts := map[string]int32{}
		var clusters clusterv1.ClusterList
		g.Expect(admin.List(ctx, &clusters)).To(Succeed())
		for i := range clusters.Items {
			if condition := conditions.Get(&clusters.Items[i], "FleetImported"); condition != nil {
				counts[condition.Reason]++
			}
		}
		status := get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName).Status
		g.Expect(status.Clusters).NotTo(BeNil())
		g.Expect(status.Clusters.Imported).To(And(BeNumerically(">=", 1), BeNumerically(">=", counts["Imported"])))
		g.Expect(status.Clusters.Imported).To(BeNumerically("<=", counts["Imported"]+counts["TemplateValuesUnresolved"]))
		g.Expect(status.Clusters.Pending).To(BeNumerically(">=", counts["WaitingForControlPlane"]))
		g.Expect(status.Classes).NotTo(BeNil())
		g.Expect(*status.Classes).To(BeNumerically(">=", 1))
	}).Should(Succeed())
}
