package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// A Cluster in namespace A, with a class in B, is imported. The test checks every object of the contract, with exact
// names, labels and selectors.
func TestImportAcrossNamespaces(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	classNamespace, namespace := newNamespace(t, g, "classes", nil), newNamespace(t, g, "team", nil)
	class := newClass(g, classNamespace, "standard", map[string]string{"tier": "gold", "both": "class", "fleet.cattle.io/shard-ref": "no"})
	s := scene{classNamespace, namespace, class}

	cluster := s.cluster("one")
	cluster.Labels = map[string]string{"env": "prod", "both": "cluster", "management.cattle.io/cluster-display-name": "no"}
	cluster.Annotations = map[string]string{"note": "kept", "meta.helm.sh/release-name": "no"}
	create(g, cluster)
	classLabels := map[string]string{stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: classNamespace}
	withClass := func(labels map[string]string) map[string]string { return stamp.Merge(classLabels, labels) }
	for key, value := range classLabels {
		g.Expect(cluster.Labels).To(HaveKeyWithValue(key, value), "the answer carries the stamp")
	}
	g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{OwnedBy: "fleet-addon-config", ClusterName: "one"}))

	initialize(g, cluster)
	willReport(g, cluster, "True Imported")
	owner := func(kind, name string, of metav1.Object) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: name, UID: of.GetUID()}}
	}
	t.Run("Fleet Cluster", func(t *testing.T) {
		g := NewWithT(t)
		imported := fleetCluster(g, namespace, "one")
		g.Expect(imported.Labels).To(Equal(withClass(map[string]string{"env": "prod", "both": "cluster", "tier": "gold", stamp.ManagedByLabel: "muster"})))
		g.Expect(imported.Annotations).To(HaveKeyWithValue("note", "kept"))
		g.Expect(imported.Annotations).NotTo(Or(HaveKey("meta.helm.sh/release-name"), HaveKey(stamp.ClusterNameAnnotation)))
		g.Expect(imported.OwnerReferences).To(Equal(owner("Cluster", "one", cluster)))
		g.Expect(imported.Spec.KubeConfigSecret).To(Equal("one-kubeconfig"))
		g.Expect(imported.Spec.AgentNamespace).To(Equal("fleet-addon-agent"))
		g.Expect(imported.Spec.AgentTolerations).To(HaveLen(3))
		g.Expect(*imported.Spec.HostNetwork).To(BeTrue())
		values := imported.Spec.TemplateValues.Data
		g.Expect(values).To(HaveKey("InfrastructureCluster"))
		g.Expect(values).To(HaveKeyWithValue("Cluster", HaveKeyWithValue("spec", HaveKeyWithValue("clusterNetwork",
			HaveKeyWithValue("pods", HaveKeyWithValue("cidrBlocks", ConsistOf("10.7.0.0/16")))))))
		config := values["ControlPlane"].(map[string]any)["spec"].(map[string]any)["kubeadmConfigSpec"]
		g.Expect(config).To(HaveKey("clusterConfiguration"))
		g.Expect(config).NotTo(Or(HaveKey("files"), HaveKey("users"), HaveKey("preKubeadmCommands")))
	})
	t.Run("ClusterGroup of the class", func(t *testing.T) {
		g := NewWithT(t)
		group := get(g, &fleetv1.ClusterGroup{}, classNamespace, "standard")
		g.Expect(group.Labels).To(Equal(withClass(map[string]string{"tier": "gold", "both": "class", stamp.ManagedByLabel: "muster"})))
		g.Expect(group.Spec.Selector).To(Equal(&metav1.LabelSelector{MatchLabels: classLabels}))
		g.Expect(group.OwnerReferences).To(Equal(owner("ClusterClass", "standard", class)))
	})
	t.Run("ClusterGroup beside the Cluster", func(t *testing.T) {
		g := NewWithT(t)
		group := s.group()
		exists(g, group)
		g.Expect(group.Labels).To(And(HaveKeyWithValue("tier", "gold"), Not(HaveKey("fleet.cattle.io/shard-ref"))))
		g.Expect(group.Spec.Selector).To(Equal(&metav1.LabelSelector{MatchLabels: classLabels}))
		g.Expect(group.OwnerReferences).To(BeEmpty())
	})
	t.Run("BundleNamespaceMapping", func(t *testing.T) {
		g := NewWithT(t)
		mapping := s.mapping()
		exists(g, mapping)
		g.Expect(mapping.NamespaceSelector).To(Equal(&metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}))
		g.Expect(mapping.BundleSelector).To(Equal(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "objectset.rio.cattle.io/hash", Operator: metav1.LabelSelectorOpDoesNotExist}}}))
		g.Expect(mapping.OwnerReferences).To(BeEmpty())
		g.Expect(mapping.Labels).To(HaveKeyWithValue(stamp.ManagedByLabel, "muster"))
	})
	t.Run("Namespace annotation", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega) {
			g.Expect(get(g, &corev1.Namespace{}, "", namespace).Annotations).To(HaveKeyWithValue(workspace, "true"))
		}).Should(Succeed())
	})
}

func TestApplyReturnsTheStamp(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	out, err := apply(t, s.yaml("one"), "-o", "yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for key, value := range map[string]string{
		stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: s.classNamespace,
		stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "one",
	} {
		g.Expect(out).To(ContainSubstring(key + ": " + value))
	}
}

// The webhook restores a pin that a request drops or alters, also after naming has changed.
func TestThePinSurvivesUpdates(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	configureCluster(t, g, "{naming: {prefix: late-}}")
	patchf(g, cluster, `{"metadata":{"annotations":{%q:null},"labels":{%q:"forged"}}}`, stamp.ClusterNameAnnotation, stamp.ClassNameLabel)
	g.Expect(cluster.Annotations).To(HaveKeyWithValue(stamp.ClusterNameAnnotation, "one"))
	g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
}

// A user changes a pin while the webhook is down. The syncer restores it and makes no second Fleet Cluster, although
// a changed naming would by now give the Cluster another name.
func TestAlteredPinIsPutBack(t *testing.T) {
	for name, test := range map[string]struct{ owners, pin string }{
		"owned, altered": {"true", `"altered"`}, "owned, dropped": {"true", "null"}, "not owned, altered": {"false", `"altered"`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			configureCluster(t, g, "{setOwnerReferences: "+test.owners+"}")
			cluster := s.imported(g, "one")
			old := fleetCluster(g, s.namespace, "one")
			patch(g, fixture.Config(), `{"spec":{"cluster":{"naming":{"prefix":"late-"}}}}`)
			restart := stop(t, g, webhookProcess)
			patch(g, cluster, entry("annotations", stamp.ClusterNameAnnotation, test.pin))
			restart()
			g.Eventually(func(g Gomega) {
				g.Expect(stamp.PinOf(current(g, cluster).Annotations).ClusterName).To(Equal("one"))
			}).Should(Succeed())
			g.Consistently(func(g Gomega) {
				var all fleetv1.ClusterList
				g.Expect(admin.List(ctx, &all, client.InNamespace(s.namespace))).To(Succeed())
				g.Expect(all.Items).To(ConsistOf(HaveField("UID", old.UID)))
			}).Should(Succeed())
		})
	}
}

func TestControlPlaneChangeReachesTheValues(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	controlPlane := target("controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane", s.namespace, "one-cp")
	patch(g, controlPlane, `{"spec":{"replicas":3}}`)
	g.Eventually(func(g Gomega) {
		values := fleetCluster(g, s.namespace, cluster.Name).Spec.TemplateValues.Data
		g.Expect(values["ControlPlane"].(map[string]any)["spec"]).To(HaveKeyWithValue("replicas", BeNumerically("==", 3)))
	}).Should(Succeed())

	deleteNow(g, controlPlane)
	willReport(g, cluster, "True TemplateValuesUnresolved", "one-cp")
	g.Expect(fleetCluster(g, s.namespace, "one").Spec.TemplateValues.Data).To(HaveKey("ControlPlane"), "the last good values stay")
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
				isRetained(g, s.group(), s.mapping())
			}
			deleteNow(g, two, s.class)
			restart()
			vanishes(g, s.group(), s.mapping(), s.fleet("one"), s.fleet("two"), named(&fleetv1.ClusterGroup{}, s.classNamespace, "standard"))
			g.Eventually(func(g Gomega) {
				g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).To(BeEmpty())
			}).Should(Succeed())
		})
	}
}

func TestRebase(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	from, to := newScene(t, g), newScene(t, g)
	cluster := from.imported(g, "one")
	to.namespace = from.namespace

	patchf(g, cluster, `{"spec":{"topology":{"classRef":{"namespace":%q}}}}`, to.classNamespace)
	g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, to.classNamespace))
	appears(g, to.group(), to.mapping())
	vanishes(g, from.group(), from.mapping())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, from.namespace, "one").Labels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, to.classNamespace))
	}).Should(Succeed())
}

func TestRemovedLabelsAreRemoved(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	for _, test := range []struct {
		value string
		is    func(keys ...string) gomegatypes.GomegaMatcher
	}{{`"x"`, haveKeys}, {"null", haveNoKeys}} {
		patch(g, s.class, entry("labels", "tier", test.value))
		patch(g, cluster, entry("labels", "env", test.value))
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(test.is("tier", "env"))
			group := s.group()
			exists(g, group)
			g.Expect(group.Labels).To(test.is("tier"))
		}).Should(Succeed())
	}
}

func TestWhatOthersChangeIsPutBack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	imported := fleetCluster(g, s.namespace, "one")
	patch(g, imported, `{"spec":{"agentNamespace":"elsewhere"},"metadata":{"labels":{"added":"by-hand"}}}`)
	isReplaced := func(object client.Object) {
		exists(g, object)
		before := object.GetUID()
		g.Expect(admin.Delete(ctx, object)).To(Succeed())
		g.Eventually(func(g Gomega) {
			exists(g, object)
			g.Expect(object.GetUID()).NotTo(Equal(before))
		}).Should(Succeed())
	}
	isReplaced(s.group())
	isReplaced(s.mapping())
	g.Eventually(func(g Gomega) {
		current := fleetCluster(g, s.namespace, "one")
		g.Expect(current.Spec.AgentNamespace).To(Equal("fleet-addon-agent"))
		g.Expect(current.Labels).To(HaveKeyWithValue("added", "by-hand"))
		g.Expect(current.UID).To(Equal(imported.UID))
	}).Should(Succeed())
	isReplaced(s.fleet("one"))
}

func TestPausedAndNameConflict(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.cluster("one")
	cluster.Spec.Paused = ptr.To(true)
	create(g, cluster)
	foreign := newFleetCluster(g, s.namespace, "one", nil) // Later, the name would be refused.
	initialize(g, cluster)
	willReport(g, cluster, "Paused")
	unpause(g, cluster)
	willReport(g, cluster, "NameConflict", stamp.AdoptAnnotation)
	patch(g, cluster, entry("labels", "changed", `"yes"`)) // The Cluster can still be changed.
	g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(BeEmpty())

	patch(g, foreign, entry("annotations", stamp.AdoptAnnotation, `"true"`))
	willReport(g, cluster, "True Imported")
	g.Expect(fleetCluster(g, s.namespace, "one").UID).To(Equal(foreign.UID))
}

// clusterctl move pauses a Cluster, copies it elsewhere, and deletes the original with its finalizers. The cluster
// lives on, and its applications must stay.
func TestMovedAwayKeepsItsApplications(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	hasOwners := func(count int) {
		g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(HaveLen(count)) }).Should(Succeed())
	}
	hasOwners(1)
	pause(g, cluster)
	hasOwners(0)
	willReport(g, cluster, "True Paused")
	unpause(g, cluster)
	hasOwners(1)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Annotations).NotTo(HaveKey(stamp.ReleasedAnnotation))
	}).Should(Succeed())
	pause(g, cluster)
	hasOwners(0)
	uid := fleetCluster(g, s.namespace, "one").UID
	patch(g, cluster, entry("annotations", "clusterctl.cluster.x-k8s.io/delete-for-move", `""`))
	deleteNow(g, cluster)
	g.Consistently(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").UID).To(Equal(uid))
		exists(g, s.group(), s.mapping())
	}).WithTimeout(4 * time.Second).Should(Succeed())

	// The applications go when a user deletes the Fleet Cluster.
	g.Expect(admin.Delete(ctx, s.fleet("one"))).To(Succeed())
	vanishes(g, s.group(), s.mapping())
}

// clusterctl move pauses a ClusterClass, copies it elsewhere, and deletes the original. Fleet goes on deploying to its
// Clusters through its group.
func TestMovedClassKeepsItsGroup(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	group := &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: s.classNamespace, Name: s.class.Name}}
	hasOwners := func(count int) {
		g.Eventually(func(g Gomega) {
			exists(g, group)
			g.Expect(group.OwnerReferences).To(HaveLen(count))
		}).Should(Succeed())
	}
	hasOwners(1)
	patch(g, s.class, entry("annotations", clusterv1.PausedAnnotation, `"true"`))
	hasOwners(0)
	patch(g, s.class, entry("annotations", clusterv1.PausedAnnotation, "null"))
	hasOwners(1)
	patch(g, s.class, entry("annotations", clusterv1.PausedAnnotation, `"true"`))
	hasOwners(0)
	uid := group.UID
	g.Expect(admin.Delete(ctx, s.class)).To(Succeed())
	g.Consistently(func(g Gomega) {
		exists(g, group)
		g.Expect(group.UID).To(Equal(uid))
	}).WithTimeout(4 * time.Second).Should(Succeed())
}

// A Cluster that is moved away keeps its group and mapping even if its Fleet Cluster had no owner: Fleet goes on
// deploying.
func TestMovedWithoutOwnerReferences(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configureCluster(t, g, "{setOwnerReferences: false}")
	cluster := s.imported(g, "one")
	appears(g, s.mapping())
	pause(g, cluster)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Annotations).To(HaveKeyWithValue(stamp.ReleasedAnnotation, "true"))
	}).Should(Succeed())
	deleteNow(g, cluster)
	g.Consistently(func(g Gomega) {
		mapping := s.mapping()
		exists(g, mapping, s.group())
		g.Expect(mapping.NamespaceSelector).NotTo(BeNil(), "it is retired")
	}).Should(Succeed())
}

// clusterctl also moves Clusters while the import is turned off. The syncer must release their Fleet Clusters even
// then, or they would be deleted with the originals.
func TestReleasedWhileTurnedOff(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	configureCluster(t, g, "{enabled: false}")
	pause(g, cluster)
	g.Eventually(func(g Gomega) {
		live := fleetCluster(g, s.namespace, "one")
		g.Expect(live.OwnerReferences).To(BeEmpty())
		g.Expect(live.Annotations).To(And(HaveKey(stamp.ReleasedAnnotation), HaveKeyWithValue(stamp.ImportedUIDAnnotation, string(cluster.UID))))
	}).Should(Succeed())
	unpause(g, cluster)
	g.Eventually(func(g Gomega) {
		live := fleetCluster(g, s.namespace, "one")
		g.Expect(live.OwnerReferences).To(HaveLen(1))
		g.Expect(live.Annotations).To(haveNoKeys(stamp.ReleasedAnnotation, stamp.ImportedUIDAnnotation))
	}).Should(Succeed())
}

func TestDeselection(t *testing.T) {
	for _, policy := range []string{"Keep", "Delete"} {
		t.Run(policy, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			cluster := s.imported(g, "one")
			uid := fleetCluster(g, s.namespace, "one").UID
			// The Clusters of other tests stay selected.
			configureCluster(t, g, "{onDeselect: "+policy+", selector: {matchExpressions: [{key: leave, operator: DoesNotExist}]}}")
			patch(g, cluster, entry("labels", "leave", `"yes"`))
			if policy == "Delete" {
				vanishes(g, s.fleet("one"), s.group(), s.mapping())
				g.Eventually(func(g Gomega) {
					live := current(g, cluster)
					g.Expect(stamp.PinOf(live.Annotations)).To(Equal(stamp.Pin{}))
					g.Expect(live.Labels).To(HaveKey(stamp.ClassNameLabel))
					g.Expect(conditions.Get(live, "FleetImported")).To(BeNil())
				}).Should(Succeed())
				return
			}
			willReport(g, cluster, "Deselected")
			g.Consistently(func(g Gomega) {
				live := fleetCluster(g, s.namespace, "one")
				g.Expect(live.UID).To(Equal(uid))
				g.Expect(live.Labels).NotTo(HaveKey("leave"))
				exists(g, s.mapping())
			}).Should(Succeed())

			// When a pin is dropped while the webhook is down, the syncer restores it as long as the Fleet Cluster
			// exists.
			restart := stop(t, g, webhookProcess)
			defer restart()
			patchf(g, cluster, `{"metadata":{"annotations":{%q:null,%q:null}}}`, stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation)
			g.Eventually(func(g Gomega) {
				g.Expect(stamp.PinOf(current(g, cluster).Annotations)).To(Equal(stamp.Pin{OwnedBy: "fleet-addon-config", ClusterName: "one"}))
			}).Should(Succeed())
		})
	}
}

// The status of the FleetAddonConfig counts what the conditions of the Clusters say.
func TestConfigStatusCounts(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configure(t, g, "{}")
	s.imported(g, "one")
	waiting := s.cluster("two")
	create(g, waiting)
	g.Eventually(func(g Gomega) {
		reports(g, waiting, "WaitingForControlPlane")
		counts := map[string]int32{}
		var clusters clusterv1.ClusterList
		g.Expect(admin.List(ctx, &clusters)).To(Succeed())
		for i := range clusters.Items {
			counts[conditions.GetReason(&clusters.Items[i], "FleetImported")]++
		}
		status := readConfig(g).Status
		g.Expect(status.Clusters).NotTo(BeNil())
		g.Expect(status.Clusters.Imported).To(And(BeNumerically(">=", 1), BeNumerically(">=", counts["Imported"])))
		g.Expect(status.Clusters.Imported).To(BeNumerically("<=", counts["Imported"]+counts["TemplateValuesUnresolved"]))
		g.Expect(status.Clusters.Pending).To(BeNumerically(">=", counts["WaitingForControlPlane"]))
		g.Expect(status.Classes).To(HaveValue(BeNumerically(">=", 1)))
	}).Should(Succeed())
}

// A recreated Cluster does not inherit the Fleet Cluster of its dead namesake: if that has an owner, it goes first.
func TestMadeAnewUnderTheSameName(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	first := s.imported(g, "again")
	old := fleetCluster(g, s.namespace, "again")
	startCollector := stop(t, g, garbageCollector)
	remove(g, fixture.ControlPlane(first), fixture.Infrastructure(first), first)
	second := s.started(g, "again")
	willReport(g, second, "False FleetClusterDeleting")
	live := fleetCluster(g, s.namespace, "again")
	g.Expect(live.UID).To(Equal(old.UID))
	g.Expect(live.OwnerReferences).To(Equal(old.OwnerReferences), "nothing of it was taken over")

	startCollector()
	g.Eventually(func(g Gomega) {
		live := fleetCluster(g, s.namespace, "again")
		g.Expect(live.UID).NotTo(Equal(old.UID))
		g.Expect(live.OwnerReferences[0].UID).To(Equal(second.UID))
		reports(g, second, "Imported")
	}).WithTimeout(time.Minute).Should(Succeed())
}

// A Fleet Cluster without an owner is handed over to the new Cluster, and Fleet deploys its agent anew, once.
func TestHandedOverToANamesake(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configureCluster(t, g, "{setOwnerReferences: false}")
	first := s.imported(g, "again")
	old := fleetCluster(g, s.namespace, "again")
	g.Expect(old.OwnerReferences).To(BeEmpty())
	remove(g, fixture.ControlPlane(first), fixture.Infrastructure(first), first)
	second := s.cluster("again")
	g.Eventually(func() error { return admin.Create(ctx, second) }).Should(Succeed())
	willReport(g, second, "WaitingForControlPlane")
	g.Expect(fleetCluster(g, s.namespace, "again").Spec.RedeployAgentGeneration).To(BeZero())

	initialize(g, second)
	willReport(g, second, "Imported")
	g.Consistently(func(g Gomega) {
		live := fleetCluster(g, s.namespace, "again")
		g.Expect(live.UID).To(Equal(old.UID))
		g.Expect(live.Spec.RedeployAgentGeneration).To(BeEquivalentTo(1))
		g.Expect(live.Annotations).To(HaveKeyWithValue(stamp.ImportedUIDAnnotation, string(second.UID)))
	}).Should(Succeed())
}

// When a user replaces the owner reference, the syncer restores it: without it the Fleet Cluster would outlive its
// Cluster.
func TestReplacedOwnerIsPutBack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	quiet(g, in(s.namespace))
	for _, owner := range []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "6d1bc08e-8ff6-4b4a-8d5b-6e6a6b0f0a10"},
		{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "one", UID: cluster.UID, BlockOwnerDeletion: ptr.To(true)},
	} {
		g.Eventually(func() error {
			live := fleetCluster(g, s.namespace, "one")
			live.OwnerReferences = []metav1.OwnerReference{owner}
			return admin.Update(ctx, live)
		}).Should(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(ContainElement(And(
				HaveField("UID", cluster.UID), HaveField("BlockOwnerDeletion", BeNil()))))
		}).WithTimeout(10 * time.Second).Should(Succeed())
	}
}
