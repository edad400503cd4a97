package integration

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync"
	"github.com/muster-fleet/muster/test/fixture"
)

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
