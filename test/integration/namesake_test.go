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
	"github.com/muster-fleet/muster/internal/sync"
	"github.com/muster-fleet/muster/test/fixture"
)

const garbageCollector = "kube-controller-manager"

// deleteAll deletes objects and waits for nothing that they own.
func deleteAll(g Gomega, objects ...client.Object) {
	for _, object := range objects {
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, object))).To(Succeed())
	}
}

// referenced are the objects that initialize makes for a Cluster.
func referenced(g Gomega, cluster *clusterv1.Cluster) []client.Object {
	return []client.Object{
		object(g, fmt.Sprintf("{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlane, metadata: {namespace: %s, name: %s-cp}}", cluster.Namespace, cluster.Name)),
		object(g, fmt.Sprintf("{apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: DevCluster, metadata: {namespace: %s, name: %s-infra}}", cluster.Namespace, cluster.Name)),
	}
}

// 9. A Cluster made anew does not inherit the Fleet Cluster of its dead namesake.
func TestMadeAnewUnderTheSameName(t *testing.T) {
	t.Run("owned: the garbage collector's turn comes first", func(t *testing.T) {
		g := NewWithT(t)
		s := newScene(t, g)
		noConfig(t)
		first := s.imported(g, "again")
		old := fleetCluster(g, s.namespace, "again")
		startCollector := stop(t, g, garbageCollector)
		deleteAll(g, append(referenced(g, first), first)...)
		second := fixture.Cluster(s.namespace, "again", "standard", s.classNamespace)
		g.Expect(admin.Create(ctx, second)).To(Succeed())
		initialize(g, second)
		g.Eventually(func(g Gomega) {
			condition := importedCondition(g, second)
			g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
			g.Expect(condition.Reason).To(Equal("FleetClusterDeleting"))
		}).Should(Succeed())
		live := fleetCluster(g, s.namespace, "again")
		g.Expect(live.UID).To(Equal(old.UID))
		g.Expect(live.OwnerReferences).To(Equal(old.OwnerReferences), "nothing of it was taken over")

		startCollector()
		g.Eventually(func(g Gomega) {
			live := fleetCluster(g, s.namespace, "again")
			g.Expect(live.UID).NotTo(Equal(old.UID))
			g.Expect(live.OwnerReferences[0].UID).To(Equal(second.UID))
			g.Expect(importedCondition(g, second).Reason).To(Equal("Imported"))
		}).WithTimeout(time.Minute).Should(Succeed())
	})
	t.Run("not owned: handed over, its agent deployed anew", func(t *testing.T) {
		g := NewWithT(t)
		s := newScene(t, g)
		setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)}})
		first := s.imported(g, "again")
		old := fleetCluster(g, s.namespace, "again")
		g.Expect(old.OwnerReferences).To(BeEmpty())
		deleteAll(g, append(referenced(g, first), first)...)
		second := fixture.Cluster(s.namespace, "again", "standard", s.classNamespace)
		g.Eventually(func() error { return admin.Create(ctx, second) }).Should(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(importedCondition(g, second).Reason).To(Equal("WaitingForControlPlane"))
		}).Should(Succeed())
		g.Expect(fleetCluster(g, s.namespace, "again").Spec.RedeployAgentGeneration).To(BeZero())

		initialize(g, second)
		g.Eventually(func(g Gomega) {
			live := fleetCluster(g, s.namespace, "again")
			g.Expect(live.UID).To(Equal(old.UID))
			g.Expect(live.Spec.RedeployAgentGeneration).To(BeEquivalentTo(1))
			g.Expect(live.Annotations).To(HaveKeyWithValue(stamp.ImportedUIDAnnotation, string(second.UID)))
			g.Expect(importedCondition(g, second).Reason).To(Equal("Imported"))
		}).Should(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(fleetCluster(g, s.namespace, "again").Spec.RedeployAgentGeneration).To(BeEquivalentTo(1), "once")
		}).Should(Succeed())
	})
}

// 10. A pin that was altered while the webhook could not put it back makes no second Fleet Cluster.
func TestAlteredPinIsPutBack(t *testing.T) {
	for name, owners := range map[string]bool{"owned": true, "not owned": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(owners)}})
			cluster := s.imported(g, "one")
			old := fleetCluster(g, s.namespace, "one")
			restart := stop(t, g, webhookProcess)
			g.Eventually(func(g Gomega) {
				before := get(g, cluster, s.namespace, "one").DeepCopy()
				cluster.Annotations[stamp.ClusterNameAnnotation] = "altered"
				g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
			}).Should(Succeed())
			restart()
			g.Eventually(func(g Gomega) {
				g.Expect(stamp.PinOf(get(g, cluster, s.namespace, "one").Annotations).ClusterName).To(Equal("one"))
			}).Should(Succeed())
			var all fleetv1.ClusterList
			g.Expect(admin.List(ctx, &all, client.InNamespace(s.namespace))).To(Succeed())
			g.Expect(all.Items).To(HaveLen(1))
			g.Expect(all.Items[0].UID).To(Equal(old.UID))
		})
	}
}

// 5. What is handed over is handed over once, and to one Cluster.
func TestAdoptIsActedOnOnce(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	shared := newFleetCluster(g, s.namespace, "shared", map[string]string{stamp.AdoptAnnotation: "true"})
	stop(t, g, webhookProcess)
	var clusters []*clusterv1.Cluster
	for _, name := range []string{"one", "two"} {
		cluster := fixture.Cluster(s.namespace, name, "", "")
		cluster.Spec.Topology = clusterv1.Topology{}
		cluster.Annotations = map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "shared"}
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		initialize(g, cluster)
		clusters = append(clusters, cluster)
	}
	settled := func(g Gomega) {
		live := fleetCluster(g, s.namespace, "shared")
		g.Expect(live.UID).To(Equal(shared.UID))
		g.Expect(live.Annotations).NotTo(HaveKey(stamp.AdoptAnnotation))
		g.Expect(live.OwnerReferences).To(HaveLen(1))
		g.Expect([]string{importedCondition(g, clusters[0]).Reason, importedCondition(g, clusters[1]).Reason}).To(ConsistOf("Imported", "NameConflict"))
	}
	g.Eventually(settled).Should(Succeed())
	// Handed over again: the one that has it exists, so it stays.
	live := fleetCluster(g, s.namespace, "shared")
	owner := live.OwnerReferences[0].UID
	before := live.DeepCopy()
	live.Annotations[stamp.AdoptAnnotation] = "true"
	g.Expect(admin.Patch(ctx, live, client.MergeFrom(before))).To(Succeed())
	g.Eventually(settled).Should(Succeed())
	g.Consistently(func(g Gomega) {
		settled(g)
		g.Expect(fleetCluster(g, s.namespace, "shared").OwnerReferences[0].UID).To(Equal(owner))
	}).Should(Succeed())
}

// 18. Of several Fleet Clusters of one Cluster, which CAAPF leaves when naming changes, it
// is pinned to that of the expected name, or to the oldest.
func TestSeveralFleetClustersOfOneCluster(t *testing.T) {
	for name, test := range map[string]struct {
		naming addonsv1.NamingStrategy
		want   string
	}{
		"the expected name": {addonsv1.NamingStrategy{Prefix: "new-"}, "new-one"},
		"the oldest":        {addonsv1.NamingStrategy{Prefix: "never-"}, "zzz-one"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			startSyncer := stop(t, g, syncerProcess)
			namespace := newNamespace(t, g, "team", nil)
			cluster := fixture.Cluster(namespace, "one", "", "")
			cluster.Spec.Topology = clusterv1.Topology{}
			g.Expect(admin.Create(ctx, cluster)).To(Succeed())
			initialize(g, cluster)
			unstamp(t, g, cluster)
			for i, prefix := range []string{"zzz-", "aaa-", "new-"} {
				if i > 0 {
					time.Sleep(1100 * time.Millisecond) // Creation times are whole seconds.
				}
				caapf(g, "addon-provider-fleet", fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %s, name: %sone, ownerReferences: [{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, name: one, uid: %s}]}
spec: {kubeConfigSecret: one-kubeconfig}
`, namespace, prefix, cluster.UID))
			}
			setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Naming: &test.naming}})
			startSyncer()
			g.Eventually(func(g Gomega) {
				g.Expect(stamp.PinOf(get(g, cluster, namespace, "one").Annotations).ClusterName).To(Equal(test.want))
			}).Should(Succeed())
		})
	}
}

// Fleet derives one namespace for Clusters of two teams. Whoever is second does not get there:
// the webhook refuses the Cluster, and the syncer does not import one that passed it.
func TestOneFleetNamespaceForTwo(t *testing.T) {
	const (
		first, second = "team-a", "team"
		one, other    = "production-eu-west-1-payments-cluster-0001", "a-production-eu-west-1-payments-cluster-00013967"
		shared        = "cluster-team-a-production-eu-west-1-payments-cluster-0001-a7464"
	)
	g := NewWithT(t)
	noConfig(t)
	for _, name := range []string{first, second} {
		namespace := &corev1.Namespace{}
		namespace.Name = name
		g.Expect(admin.Create(ctx, namespace)).To(Succeed())
		newClass(g, name, "standard", nil)
	}
	rightful := fixture.Cluster(first, one, "standard", first)
	g.Expect(admin.Create(ctx, rightful)).To(Succeed())
	create := func() error { return admin.Create(ctx, fixture.Cluster(second, other, "standard", second)) }
	isRefused := And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring("Fleet would keep it in Namespace %q", shared)), MatchError(ContainSubstring("for example %q", other+"-2")))
	// Its pin is enough.
	g.Eventually(func() error {
		return admin.Create(ctx, fixture.Cluster(second, other, "standard", second), client.DryRunAll)
	}).Should(isRefused)
	initialize(g, rightful)
	g.Eventually(func(g Gomega) { fleetCluster(g, first, one) }).Should(Succeed())
	g.Expect(create()).To(isRefused)
	g.Expect(admin.Create(ctx, fixture.Cluster(second, other+"-2", "standard", second))).To(Succeed(), "the name in the message should do")

	start := stop(t, g, webhookProcess)
	g.Expect(create()).To(Succeed())
	start()
	rival := get(g, &clusterv1.Cluster{}, second, other)
	initialize(g, rival)
	isKeptOut := func(g Gomega) {
		condition := conditions.Get(get(g, &clusterv1.Cluster{}, second, other), sync.ImportedCondition)
		g.Expect(condition).NotTo(BeNil())
		g.Expect(fmt.Sprintf("%s %s", condition.Status, condition.Reason)).To(Equal("False NameConflict"))
		g.Expect(condition.Message).To(And(ContainSubstring(shared), ContainSubstring(other+"-2")))
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: second, Name: other}, &fleetv1.Cluster{})).To(Satisfy(apierrors.IsNotFound))
	}
	g.Eventually(isKeptOut).Should(Succeed())

	// As long as Fleet has not removed the namespace, what is deployed there is the first one's.
	namespace := &corev1.Namespace{}
	namespace.Name = shared
	namespace.Annotations = map[string]string{fleetv1.ClusterNamespaceAnnotation: first, fleetv1.ClusterAnnotation: one}
	g.Expect(admin.Create(ctx, namespace)).To(Succeed())
	g.Expect(admin.Delete(ctx, rightful)).To(Succeed())
	g.Eventually(func() error {
		return admin.Get(ctx, client.ObjectKey{Namespace: first, Name: one}, &fleetv1.Cluster{})
	}).Should(Satisfy(apierrors.IsNotFound))
	g.Consistently(isKeptOut).Should(Succeed())
	g.Expect(admin.Delete(ctx, namespace)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, second, other).Annotations).To(HaveKeyWithValue(stamp.ImportedFromAnnotation, other))
		g.Expect(conditions.IsTrue(get(g, &clusterv1.Cluster{}, second, other), sync.ImportedCondition)).To(BeTrue())
	}).Should(Succeed())
}
