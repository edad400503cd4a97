package e2e

import (
	"fmt"
	"maps"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// classTricks are ways to the platform's class through his Clusters and ClusterClasses.
func classTricks() []trick {
	return []trick{
		{name: "a Cluster of the platform's class", play: func(g Gomega, m *tenant) {
			m.refused(g, m.Create(ctx, m.topology("mine", platformClass, platform)))
			cluster := m.topology("", platformClass, platform)
			cluster.GenerateName = "mine-"
			m.refused(g, m.Create(ctx, cluster))
			cluster = m.topology("mine", platformClass, platform)
			cluster.Annotations = pin
			m.refused(g, m.Create(ctx, cluster))
		}},
		{name: "a Cluster of the platform's class in v1beta1", play: func(g Gomega, m *tenant) {
			m.refused(g, m.Create(ctx, fromYAML(g, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {namespace: %s, name: mine}
spec: {topology: {class: %s, classNamespace: %s, version: v1.33.0}}
`, m.namespace, platformClass, platform))))
		}},
		{name: "the fields of v1beta1 in a Cluster of v1beta2", play: func(g Gomega, m *tenant) {
			m.try("making it", m.Create(ctx, fromYAML(g, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %s, name: mine}
spec: {topology: {class: %s, classNamespace: %s, classRef: {name: own}, version: v1.33.0}}
`, m.namespace, platformClass, platform))))
			m.try("setting them later", m.Patch(ctx, m.topology("mine", "own", ""), mergePatch(
				`{"spec":{"topology":{"class":"`+platformClass+`","classNamespace":"`+platform+`"}}}`)))
		}},
		{name: "a Cluster of his, rebased", play: func(g Gomega, m *tenant) {
			m.tryRebase(g, m.imported(g, "mine"))
		}},
		{name: "a Cluster of his, paused and released, rebased, unpaused", play: func(g Gomega, m *tenant) {
			mine := m.imported(g, "mine")
			g.Expect(m.Patch(ctx, mine, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
			time.Sleep(time.Second)
			m.tryRebase(g, mine)
			m.try("relabelling its Fleet Cluster", m.relabel(m.fleetCluster("mine", nil), platformLabels, released))
			g.Expect(m.Patch(ctx, mine, mergePatch(`{"spec":{"paused":false}}`))).To(Succeed())
		}},
		{name: "a Cluster of his that is being deleted and kept by a finalizer", play: func(g Gomega, m *tenant) {
			mine := m.imported(g, "mine")
			// Cluster API writes the whole list when it adds its own.
			g.Eventually(func() ([]string, error) {
				err := m.Get(ctx, client.ObjectKeyFromObject(mine), mine)
				return mine.Finalizers, err
			}).Should(ContainElement(clusterv1.ClusterFinalizer))
			g.Expect(m.Patch(ctx, mine, mergePatch(`{"metadata":{"finalizers":["cluster.cluster.x-k8s.io","tenant.example/kept"]}}`))).To(Succeed())
			g.Expect(m.Delete(ctx, mine.DeepCopy())).To(Succeed())
			m.tryRebase(g, mine)
			m.try("making a Fleet Cluster of it", m.Create(ctx, m.fleetCluster("forged", importedFrom("mine"))))
			m.try("relabelling its own", m.relabel(m.fleetCluster("mine", nil), platformLabels, released))
			m.try("forging labels and pin", m.relabel(mine, platformLabels, pin))
		}},
		{name: "a Cluster without a topology that wears the class labels", play: func(g Gomega, m *tenant) {
			mine := fromYAML(g, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %s, name: mine, labels: {%s: %s, %s: %s}}
spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: DevCluster, name: mine}}
`, m.namespace, stamp.ClassNameLabel, platformClass, stamp.ClassNamespaceLabel, platform))
			g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: DevCluster
metadata: {namespace: %s, name: mine, annotations: {cluster.x-k8s.io/managed-by: "its owner"}}
spec: {backend: {inMemory: {}}}
`, m.namespace))).To(Succeed())
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			g.Expect(m.Status().Patch(ctx, mine.DeepCopy(), mergePatch(`{"status":{"initialization":{"controlPlaneInitialized":true}}}`))).To(Succeed())
			g.Eventually(func() error {
				return m.Get(ctx, types.NamespacedName{Namespace: m.namespace, Name: "mine"}, &fleetv1.Cluster{})
			}).Should(Succeed())
			m.try("putting the labels on again", m.relabel(mine, platformLabels, map[string]string{stamp.ClassFullNameAnnotation: platformClass}))
		}, after: withoutClassLabels},
		{name: "a Cluster of his own class that wears the platform's labels", play: func(g Gomega, m *tenant) {
			mine := m.topology("mine", "own", "")
			mine.Labels = maps.Clone(platformLabels)
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			m.initialize(g, mine)
			m.try("putting them on again", m.relabel(mine, platformLabels, map[string]string{stamp.ClassFullNameAnnotation: platformClass}))
		}, after: withoutClassLabels},
		{name: "a ClusterClass of his own with the name of the group", ownGroup: true, play: func(g Gomega, m *tenant) {
			m.try("making the class", m.Create(ctx, fromYAML(g, fmt.Sprintf(classYAML, m.namespace, platformGroup))))
			acceptClass(g, m.namespace, platformGroup)
			mine := m.topology("mine", platformGroup, "")
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			m.initialize(g, mine)
			m.try("making a Fleet Cluster of it", m.Create(ctx, m.fleetCluster("forged", released)))
		}},
		{name: "a ClusterClass of his own that wears the platform's labels", play: func(_ Gomega, m *tenant) {
			class := &clusterv1.ClusterClass{}
			class.Namespace, class.Name = m.namespace, "own"
			labels := maps.Clone(platformLabels)
			labels["app.kubernetes.io/managed-by"] = "muster"
			m.try("labelling it", m.relabel(class, labels, released))
			m.try("making a Cluster of it", m.Create(ctx, m.topology("mine", "own", "")))
		}},
	}
}

// refused expects that who may use a class was asked.
func (m *tenant) refused(g Gomega, err error) {
	m.Helper()
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
	g.Expect(err.Error()).To(ContainSubstring("get clusterclasses.cluster.x-k8s.io"))
}

// tryRebase rebases a Cluster to the platform's class in every way there is.
func (m *tenant) tryRebase(g Gomega, cluster *clusterv1.Cluster) {
	m.Helper()
	target := func() *clusterv1.Cluster { return m.topology(cluster.Name, "", "") }
	m.refused(g, m.Patch(ctx, target(), mergePatch(`{"spec":{"topology":{"classRef":{"name":"`+platformClass+`","namespace":"`+platform+`"}}}}`)))
	m.refused(g, m.Patch(ctx, target(), client.RawPatch(types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/topology/classRef","value":{"name":"`+platformClass+`","namespace":"`+platform+`"}}]`))))
	old := fromYAML(g, fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {namespace: %s, name: %s}}", m.namespace, cluster.Name))
	m.refused(g, m.Patch(ctx, old, mergePatch(`{"spec":{"topology":{"class":"`+platformClass+`","classNamespace":"`+platform+`"}}}`)))
}

// withoutClassLabels checks that nothing in the namespace wears the platform's labels.
func withoutClassLabels(g Gomega, m *tenant) {
	var clusters fleetv1.ClusterList
	g.Expect(admin.List(ctx, &clusters, client.InNamespace(m.namespace))).To(Succeed())
	for _, cluster := range clusters.Items {
		g.Expect(cluster.Labels).NotTo(HaveKeyWithValue(stamp.ClassNamespaceLabel, platform), "Fleet Cluster %s", cluster.Name)
	}
}
