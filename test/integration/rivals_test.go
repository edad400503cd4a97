package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// plainCluster creates a Cluster without a topology.
func plainCluster(g Gomega, namespace, name string, annotations map[string]string) *clusterv1.Cluster {
	cluster := fixture.Cluster(namespace, name, "", "")
	cluster.Annotations = annotations
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	return cluster
}

// A Fleet Cluster that several Clusters own is that of one of them: they do not write to
// it in turns, as whoever may write owner references could have them do for ever.
func TestFleetClusterOfSeveralOwners(t *testing.T) {
	g := NewWithT(t)
	noConfig(t)
	namespace := newNamespace(t, g, "team", nil)
	first := plainCluster(g, namespace, "a", nil)
	initialize(g, first)
	g.Eventually(func(g Gomega) { fleetCluster(g, namespace, "a") }).Should(Succeed())
	owners := ""
	for i := range 3 {
		other := plainCluster(g, namespace, fmt.Sprintf("b%d", i), nil)
		owners += fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: %s, uid: %s}, ", other.Name, other.UID)
	}
	caapf(g, "mallory", fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %s, name: a, ownerReferences: [%s]}
`, namespace, owners))
	g.Eventually(func(g Gomega) {
		live := fleetCluster(g, namespace, "a")
		g.Expect(live.OwnerReferences).To(ConsistOf(HaveField("UID", first.UID)))
		g.Expect(live.Spec.KubeConfigSecret).To(Equal("a-kubeconfig"))
	}).Should(Succeed())
	quiet(g)
	since := time.Now()
	time.Sleep(2 * time.Second)
	g.Expect(requests(g, since, isWrite)).To(BeEmpty())
}

// Two Clusters that are pinned to one name, and become ready at once: one gets it, and
// nothing of the other's is ever written to it.
func TestRaceForOneName(t *testing.T) {
	g := NewWithT(t)
	noConfig(t)
	namespace := newNamespace(t, g, "team", nil)
	stop(t, g, webhookProcess)
	const pairs = 10
	var clusters []*clusterv1.Cluster
	for i := range pairs {
		for _, name := range []string{"one", "two"} {
			clusters = append(clusters, plainCluster(g, namespace, fmt.Sprintf("%s-%d", name, i), map[string]string{
				stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: fmt.Sprintf("pair-%d", i)}))
		}
	}
	quiet(g)
	for _, cluster := range clusters {
		g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	}
	for i := range pairs {
		g.Eventually(func(g Gomega) {
			g.Expect([]string{importedCondition(g, clusters[2*i]).Reason, importedCondition(g, clusters[2*i+1]).Reason}).To(ConsistOf("Imported", "NameConflict"))
		}).Should(Succeed())
		g.Expect(fleetCluster(g, namespace, fmt.Sprintf("pair-%d", i)).Generation).To(BeEquivalentTo(1), "written once")
	}
}

// A conflict with a Cluster that exists ends when that goes, as its message says.
func TestConflictEndsWithItsRival(t *testing.T) {
	g := NewWithT(t)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)}})
	namespace := newNamespace(t, g, "team", nil)
	rival := plainCluster(g, namespace, "a", nil)
	g.Expect(admin.Create(ctx, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "b", Annotations: map[string]string{
		stamp.AdoptAnnotation: "true", stamp.ImportedFromAnnotation: "a"}}})).To(Succeed())
	restart := stop(t, g, webhookProcess)
	waiting := plainCluster(g, namespace, "b", nil)
	restart()
	initialize(g, waiting)
	g.Eventually(func(g Gomega) {
		g.Expect(importedCondition(g, waiting).Reason).To(Equal("NameConflict"))
		g.Expect(importedCondition(g, waiting).Message).To(ContainSubstring("which exists; delete that first"))
	}).Should(Succeed())
	g.Expect(admin.Delete(ctx, rival)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedCondition(g, waiting).Reason).To(Equal("Imported")) }).Should(Succeed())
}

// An owner reference that somebody replaced by another is put back: without it the Fleet
// Cluster would outlive its Cluster.
func TestReplacedOwnerIsPutBack(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	cluster := s.imported(g, "one")
	quiet(g)
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

// clusterctl moves Clusters also while the import is turned off: what is in Fleet is
// released all the same, or it would be deleted with the original.
func TestReleasedWhileTurnedOff(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	cluster := s.imported(g, "one")
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Enabled: ptr.To(false)}})
	setPaused := func(paused any) {
		g.Expect(admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"paused":%v}}`, paused)))).To(Succeed())
	}
	setPaused(true)
	g.Eventually(func(g Gomega) {
		live := fleetCluster(g, s.namespace, "one")
		g.Expect(live.OwnerReferences).To(BeEmpty())
		g.Expect(live.Annotations).To(And(HaveKey(stamp.ReleasedAnnotation), HaveKeyWithValue(stamp.ImportedUIDAnnotation, string(cluster.UID))))
	}).Should(Succeed())
	setPaused("null")
	g.Eventually(func(g Gomega) {
		live := fleetCluster(g, s.namespace, "one")
		g.Expect(live.OwnerReferences).To(HaveLen(1))
		g.Expect(live.Annotations).To(And(Not(HaveKey(stamp.ReleasedAnnotation)), Not(HaveKey(stamp.ImportedUIDAnnotation))))
	}).Should(Succeed())
}

// What a tenant says is deployed in his namespace keeps nothing of the class's namespace
// deployed: Fleet is made to look at every bundle, and is not waited for in vain.
func TestRetiringIsNotMisled(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	user := s.imported(g, "user")
	g.Eventually(func(g Gomega) { exists(g, s.mapping()) }).Should(Succeed())
	bundle := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: s.classNamespace, Name: "real"}}
	g.Expect(admin.Create(ctx, bundle)).To(Succeed())
	deployment := func(namespace, name, bundle string) *fleetv1.BundleDeployment {
		result := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{
			fleetv1.BundleNamespaceLabel: s.classNamespace, fleetv1.ClusterNamespaceLabel: s.namespace}}}
		if bundle != "" {
			result.Labels[fleetv1.BundleLabel] = bundle
		}
		g.Expect(admin.Create(ctx, result)).To(Succeed())
		return result
	}
	clusterNamespace := newNamespace(t, g, "cluster", nil)
	deployment(s.namespace, "nameless", "")
	deployment(clusterNamespace, "nameless", "")
	rest := deployment(clusterNamespace, "real", "real")
	since := time.Now()
	deleteNow(g, user)
	g.Eventually(func() []stack.AuditEvent {
		return requests(g, since, func(e stack.AuditEvent) bool { return e.Resource == "bundles" && e.Name == "real" && e.Verb == "patch" })
	}).ShouldNot(BeEmpty())
	g.Expect(admin.Delete(ctx, rest)).To(Succeed())
	g.Eventually(func(g Gomega) { isGone(g, s.mapping()) }).WithTimeout(15*time.Second).Should(Succeed(), "nothing real is left")
}

// A Cluster that is moved away keeps its group and mapping, whether or not its Fleet
// Cluster had an owner: what Fleet deploys goes on.
func TestMovedWithoutOwnerReferences(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)}})
	cluster := s.imported(g, "one")
	g.Eventually(func(g Gomega) { exists(g, s.mapping()) }).Should(Succeed())
	g.Expect(admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`)))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Annotations).To(HaveKeyWithValue(stamp.ReleasedAnnotation, "true"))
	}).Should(Succeed())
	deleteNow(g, cluster)
	g.Consistently(func(g Gomega) {
		exists(g, s.mapping())
		g.Expect(isRetired(g, s)).To(BeFalse())
		exists(g, s.group())
	}).Should(Succeed())
}

var (
	selection = map[string]string{"fleet": "yes"}
	agents    = map[string]string{stamp.RegistrationAnnotation: string(stamp.ByAgent)}
)

// An attacker's Cluster whose name leads to the Fleet namespace of a Cluster that waits for its
// control plane does not get there, although its own agent would register at once: neither if it
// is selected only later, nor if the webhook could not check it, nor with a pin that the attacker
// wrote.
func TestNoFleetNamespaceOfAnotherForLatecomers(t *testing.T) {
	g := NewWithT(t)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: selection}}})
	for name, attack := range map[string]func(t *testing.T, g Gomega, attacker *clusterv1.Cluster){
		"late-selected": func(_ *testing.T, g Gomega, attacker *clusterv1.Cluster) {
			g.Expect(admin.Create(ctx, attacker)).To(Succeed())
			g.Expect(admin.Patch(ctx, attacker, mergePatch(`{"metadata":{"labels":{"fleet":"yes"}}}`))).To(Succeed())
		},
		"unchecked": func(t *testing.T, g Gomega, attacker *clusterv1.Cluster) {
			start := stop(t, g, webhookProcess)
			attacker.Labels = selection
			g.Expect(admin.Create(ctx, attacker)).To(Succeed())
			start()
		},
		"forged": func(t *testing.T, g Gomega, attacker *clusterv1.Cluster) {
			start := stop(t, g, webhookProcess)
			attacker.Labels = selection
			forgePin(attacker)
			g.Expect(admin.Create(ctx, attacker)).To(Succeed())
			start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			victim, attacker := rivalsFor(g, name)
			victim.Labels = selection
			g.Expect(admin.Create(ctx, victim)).To(Succeed())
			g.Eventually(func(g Gomega) { g.Expect(importOf(g, victim)).To(Equal("False WaitingForControlPlane")) }).Should(Succeed())

			attack(t, g, attacker)
			isKeptOut := func(g Gomega) {
				g.Expect(importOf(g, attacker)).To(Equal("False NameConflict"))
				g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(attacker), &fleetv1.Cluster{})).To(Satisfy(apierrors.IsNotFound))
			}
			g.Eventually(isKeptOut).Should(Succeed())
			said := conditions.GetMessage(get(g, &clusterv1.Cluster{}, attacker.Namespace, attacker.Name), sync.ImportedCondition)
			g.Expect(said).To(ContainSubstring("for example %q", attacker.Name+"-2"))

			initialize(g, victim)
			g.Eventually(func(g Gomega) { g.Expect(importOf(g, victim)).To(Equal("True Imported")) }).Should(Succeed())
			g.Consistently(isKeptOut).Should(Succeed())

			// When the namespace is free, the other one gets it.
			g.Expect(admin.Delete(ctx, victim)).To(Succeed())
			g.Eventually(func(g Gomega) { fleetCluster(g, attacker.Namespace, attacker.Name) }).Should(Succeed())
		})
	}
}

// A pin that someone wrote onto a Cluster that is not selected keeps nobody out of Fleet.
func TestForgedPinKeepsNobodyOut(t *testing.T) {
	g := NewWithT(t)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: selection}}})
	victim, attacker := rivalsFor(g, "squat")
	victim.Labels = selection
	start := stop(t, g, webhookProcess)
	forgePin(attacker)
	g.Expect(admin.Create(ctx, attacker)).To(Succeed())
	g.Expect(admin.Create(ctx, victim)).To(Succeed())
	start()
	initialize(g, victim)
	g.Eventually(func(g Gomega) { g.Expect(importOf(g, victim)).To(Equal("True Imported")) }).Should(Succeed())
}

// rivalsFor returns two Clusters of two new namespaces for which Fleet derives one namespace. The
// agent of the second calls by itself.
func rivalsFor(g Gomega, namespace string) (victim, attacker *clusterv1.Cluster) {
	const name = "production-eu-west-1-payments-cluster-0001"
	for _, name := range []string{namespace + "-a", namespace} {
		object := &corev1.Namespace{}
		object.Name = name
		g.Expect(admin.Create(ctx, object)).To(Succeed())
	}
	wanted := stamp.FleetNamespace(namespace+"-a", name)
	for i := range 1 << 24 {
		other := fmt.Sprintf("a-%s%d", name, i)
		if stamp.FleetNamespace(namespace, other) == wanted {
			victim, attacker = fixture.Cluster(namespace+"-a", name, "", ""), fixture.Cluster(namespace, other, "", "")
			attacker.Annotations = agents
			return victim, attacker
		}
	}
	g.Expect(wanted).To(BeEmpty(), "no name with this namespace was found")
	return nil, nil
}

func forgePin(cluster *clusterv1.Cluster) {
	cluster.Annotations = stamp.Merge(cluster.Annotations, map[string]string{stamp.OwnedByAnnotation: addonsv1.FleetAddonConfigName, stamp.ClusterNameAnnotation: cluster.Name})
}

// importOf returns status and reason of FleetImported.
func importOf(g Gomega, cluster *clusterv1.Cluster) string {
	condition := conditions.Get(get(g, &clusterv1.Cluster{}, cluster.Namespace, cluster.Name), sync.ImportedCondition)
	if condition == nil {
		return ""
	}
	return strings.Join([]string{string(condition.Status), condition.Reason}, " ")
}
