package e2e

import (
	"maps"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// fleetClusterTricks are ways in through Fleet's objects in his own namespace.
func fleetClusterTricks() []trick {
	handMade := func(annotations map[string]string) func(Gomega, *tenant) {
		return func(_ Gomega, m *tenant) {
			m.try("making it", m.Create(ctx, m.fleetCluster("forged", annotations)))
		}
	}
	applied := func(manager string) func(Gomega, *tenant) {
		return func(g Gomega, m *tenant) {
			g.Expect(m.Create(ctx, m.topology("mine", "own", ""))).To(Succeed())
			m.try("applying it released", m.apply(manager, "forged", released))
			m.try("applying it as that of his", m.apply(manager, "forged-too", importedFrom("mine")))
		}
	}
	return []trick{
		{name: "a hand-made Fleet Cluster, released", play: handMade(released)},
		{name: "a hand-made Fleet Cluster, imported from a Cluster that is not there", play: handMade(importedFrom("nobody"))},
		{name: "a hand-made Fleet Cluster, released, of a class with a dotted and long name", play: func(_ Gomega, m *tenant) {
			annotations := maps.Clone(released)
			annotations[stamp.ClassFullNameAnnotation] = "a.class.of.the.platform.whose.name.is.longer.than.a.label.value.may.be"
			m.try("making it", m.Create(ctx, m.fleetCluster("forged", annotations)))
		}},
		{name: "a hand-made Fleet Cluster, imported from a Cluster of his", play: func(g Gomega, m *tenant) {
			g.Expect(m.Create(ctx, m.topology("mine", "own", ""))).To(Succeed())
			m.try("making it", m.Create(ctx, m.fleetCluster("forged", importedFrom("mine"))))
		}},
		{name: "a hand-made Fleet Cluster that a Cluster of his owns", play: func(g Gomega, m *tenant) {
			mine := m.topology("mine", "own", "")
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			forged := m.fleetCluster("forged", importedFrom("mine"))
			forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: mine.Name, UID: mine.UID}}
			m.try("making it", m.Create(ctx, forged))
			forged = m.fleetCluster("without-name", nil)
			forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta1", Kind: "Cluster", Name: mine.Name, UID: mine.UID}}
			m.try("making one without imported-from", m.Create(ctx, forged))
		}},
		{name: "a hand-made Fleet Cluster that says which UID it is of", play: func(g Gomega, m *tenant) {
			mine := m.topology("mine", "own", "")
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			annotations := importedFrom("mine")
			annotations[stamp.Domain+"/imported-uid"] = string(mine.UID)
			m.try("making it", m.Create(ctx, m.fleetCluster("forged", annotations)))
		}},
		{name: "a Fleet Cluster handed over to a Cluster of his", play: func(g Gomega, m *tenant) {
			annotations := maps.Clone(released)
			annotations[stamp.AdoptAnnotation] = "true"
			m.try("making it", m.Create(ctx, m.fleetCluster("mine", annotations)))
			mine := m.topology("mine", "own", "")
			m.try("making the Cluster of its name", m.Create(ctx, mine))
			if mine.UID != "" {
				m.initialize(g, mine)
			}
			annotations["x"] = "again"
			m.try("and the other way round", m.Create(ctx, m.fleetCluster("other", annotations)))
		}},
		{name: "applied as addon-provider-fleet", play: applied("addon-provider-fleet")},
		{name: "applied as x-addon-provider-fleet", play: applied("x-addon-provider-fleet")},
		{name: "Muster's own Fleet Cluster, relabelled", play: relabelled(nil)},
		{name: "Muster's own Fleet Cluster, relabelled and released", play: relabelled(released)},
		{name: "Muster's own Fleet Cluster, relabelled to a class with a dotted and long name",
			play: relabelled(map[string]string{stamp.ClassFullNameAnnotation: "a.class.of.the.platform.whose.name.is.longer.than.a.label.value.may.be"})},
		{name: "Muster's own Fleet Cluster, frozen by a pause, relabelled", play: func(g Gomega, m *tenant) {
			mine := m.imported(g, "mine")
			g.Expect(m.Patch(ctx, mine, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
			time.Sleep(time.Second) // The syncer lets go of the Fleet Cluster.
			m.try("relabelling", m.relabel(m.fleetCluster("mine", nil), platformLabels, nil))
			time.Sleep(time.Second)
			m.try("unpausing", m.Patch(ctx, mine, mergePatch(`{"spec":{"paused":false}}`)))
		}},
		{name: "Muster's own Fleet Cluster, deleted and made again", play: func(g Gomega, m *tenant) {
			m.imported(g, "mine")
			for range 20 {
				_ = m.Delete(ctx, m.fleetCluster("mine", nil))
				if err := m.Create(ctx, m.fleetCluster("mine", released)); err == nil {
					m.Log("he was faster than the syncer")
				}
				time.Sleep(50 * time.Millisecond)
			}
		}},
		{name: "a hand-made ClusterGroup under the name of the one for the platform's class", play: func(_ Gomega, m *tenant) {
			group := &fleetv1.ClusterGroup{}
			group.Namespace, group.Name, group.Labels = m.namespace, platformGroup, maps.Clone(platformLabels)
			group.Labels["app.kubernetes.io/managed-by"] = "muster"
			group.Spec.Selector = &metav1.LabelSelector{}
			m.try("making it", m.Create(ctx, group))
			m.try("making a Fleet Cluster for it", m.Create(ctx, m.fleetCluster("forged", released)))
		}},
	}
}

// relabelled relabels what Muster made, again and again while Muster puts it back.
func relabelled(annotations map[string]string) func(Gomega, *tenant) {
	return func(g Gomega, m *tenant) {
		m.imported(g, "mine")
		for i := range 10 {
			err := m.relabel(m.fleetCluster("mine", nil), platformLabels, annotations)
			if i == 0 {
				m.try("relabelling", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// apply applies a Fleet Cluster of the platform's class, without the label of Muster's.
func (m *tenant) apply(manager, name string, annotations map[string]string) error {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("fleet.cattle.io/v1alpha1")
	object.SetKind("Cluster")
	object.SetNamespace(m.namespace)
	object.SetName(name)
	object.SetLabels(platformLabels)
	object.SetAnnotations(annotations)
	return m.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager), client.ForceOwnership)
}
