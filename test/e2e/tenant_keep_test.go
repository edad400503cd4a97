package e2e

import (
	"maps"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// keepingTricks are ways to keep what was open with every right, for a Cluster that the
// platform team made in his namespace and that is gone now. What is live may be kept; once
// it is gone nothing of his brings it back.
func keepingTricks() []trick {
	copies := func(g Gomega, m *tenant) {
		m.try("a copy that is released", m.Create(ctx, m.fleetCluster("copy", released)))
		m.try("a copy that is his Cluster's", m.Create(ctx, m.fleetCluster("copy-of-mine", importedFrom("mine"))))
		m.try("a copy applied as CAAPF's", m.apply("x-addon-provider-fleet", "applied", released))
	}
	return []trick{
		{name: "copies of a legitimate Fleet Cluster, made before its Cluster goes", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			m.imported(g, "mine")
			copies(g, m)
			m.deleteCluster(g, theirs)
			m.closed(g)
			copies(g, m)
			for _, name := range []string{"copy", "copy-of-mine", "applied"} {
				m.try("labelling "+name, m.relabel(m.fleetCluster(name, nil), map[string]string{"look": "again"}, nil))
			}
		}},
		{name: "a legitimate Fleet Cluster, released by hand before its Cluster goes", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			g.Expect(m.Patch(ctx, theirs, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
			time.Sleep(time.Second)
			m.try("releasing it", m.relabel(m.fleetCluster("theirs", nil), nil, released))
			m.try("disowning it", m.Patch(ctx, m.fleetCluster("theirs", nil), mergePatch(`{"metadata":{"ownerReferences":null}}`)))
			m.deleteCluster(g, theirs)
			m.closed(g)
			m.try("labelling it", m.relabel(m.fleetCluster("theirs", nil), map[string]string{"look": "again"}, released))
			m.try("making a namesake of its Cluster", m.Create(ctx, m.topology("theirs", "own", "")))
		}},
		{name: "a legitimate Fleet Cluster, handed to another Cluster of his", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			mine := m.imported(g, "mine")
			annotations := maps.Clone(importedFrom("mine"))
			annotations[stamp.AdoptAnnotation] = "true"
			m.try("handing it over", m.relabel(m.fleetCluster("theirs", nil), nil, annotations))
			m.try("owning it", m.Patch(ctx, m.fleetCluster("theirs", nil), mergePatch(
				`{"metadata":{"ownerReferences":[{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","name":"mine","uid":"`+string(mine.UID)+`"}]}}`)))
			m.deleteCluster(g, theirs)
			m.closed(g)
			m.try("labelling it", m.relabel(m.fleetCluster("theirs", nil), platformLabels, annotations))
		}},
		{name: "the group of a legitimate Cluster, kept by hand", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			m.deleteCluster(g, theirs)
			m.closed(g)
			group := &fleetv1.ClusterGroup{}
			group.Namespace, group.Name, group.Labels = m.namespace, platformGroup, maps.Clone(platformLabels)
			group.Labels["app.kubernetes.io/managed-by"] = "muster"
			group.Spec.Selector = &metav1.LabelSelector{MatchLabels: platformLabels}
			m.try("making it again", m.Create(ctx, group))
			m.try("and a Fleet Cluster", m.Create(ctx, m.fleetCluster("theirs", importedFrom("theirs"))))
		}},
	}
}

// legitimate makes a Cluster of the platform's class in his namespace, as one who may,
// and waits until the platform's bundle is there: what the other tricks must not reach.
func (m *tenant) legitimate(g Gomega) *clusterv1.Cluster {
	cluster := m.ofPlatform(g, "theirs", platformClass, nil)
	g.Eventually(func(g Gomega) {
		g.Expect(m.deployed(g)).NotTo(BeEmpty())
	}).WithTimeout(soon).Should(Succeed())
	return cluster
}

// deployed returns what Fleet deploys of the platform's bundles in his namespace.
func (m *tenant) deployed(g Gomega) []string {
	var deployments fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &deployments, client.MatchingLabels{
		fleetv1.BundleNamespaceLabel: platform, fleetv1.ClusterNamespaceLabel: m.namespace})).To(Succeed())
	var names []string
	for _, deployment := range deployments.Items {
		names = append(names, deployment.Labels[fleetv1.ClusterLabel])
	}
	return names
}

// deleteCluster deletes a Cluster, as whoever owns it would.
func (m *tenant) deleteCluster(g Gomega, cluster *clusterv1.Cluster) {
	g.Expect(m.Delete(ctx, cluster.DeepCopy())).To(Succeed())
	// Cluster API does not end the deletion of a paused one.
	g.Expect(client.IgnoreNotFound(m.Patch(ctx, cluster.DeepCopy(), mergePatch(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	g.Eventually(func() error {
		return client.IgnoreNotFound(m.Get(ctx, client.ObjectKeyFromObject(cluster), cluster.DeepCopy()))
	}).Should(Succeed())
}

// closed takes away by hand what may have been kept, and begins to watch.
func (m *tenant) closed(g Gomega) {
	time.Sleep(2 * time.Second)
	m.Logf("kept, which it may be: %v", m.deployed(g))
	mapping := &fleetv1.BundleNamespaceMapping{}
	mapping.Namespace, mapping.Name = platform, m.namespace
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, mapping))).To(Succeed())
	m.since = time.Now()
	// Fleet drops what it deployed when it looks at the bundle, which nobody tells it to.
	g.Eventually(func(g Gomega) {
		touchBundle(g)
		g.Expect(m.deployed(g)).To(BeEmpty())
	}).WithPolling(time.Second).WithTimeout(15 * time.Second).Should(Succeed())
	m.since = time.Now()
}
