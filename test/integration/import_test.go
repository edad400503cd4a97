package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// After import of a Cluster in namespace A whose class is in B: every object of the
// contract, with exact names, labels and selectors.
func TestImportAcrossNamespaces(t *testing.T) {
	g := NewWithT(t)
	classNamespace := newNamespace(t, g, "classes", nil)
	namespace := newNamespace(t, g, "team", nil)
	class := newClass(g, classNamespace, "standard", map[string]string{"tier": "gold", "both": "class", "fleet.cattle.io/shard-ref": "no"})

	cluster := fixture.Cluster(namespace, "one", "standard", classNamespace)
	cluster.Labels = map[string]string{"env": "prod", "both": "cluster", "management.cattle.io/cluster-display-name": "no"}
	cluster.Annotations = map[string]string{"note": "kept", "meta.helm.sh/release-name": "no"}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())

	t.Run("the answer to the create carries the stamp", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
		g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, classNamespace))
		g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{OwnedBy: "fleet-addon-config", ClusterName: "one"}))
	})

	initialize(g, cluster)
	classLabels := map[string]string{stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: classNamespace}

	t.Run("Fleet Cluster", func(t *testing.T) {
		g := NewWithT(t)
		var imported *fleetv1.Cluster
		g.Eventually(func(g Gomega) { imported = fleetCluster(g, namespace, "one") }).Should(Succeed())
		g.Expect(imported.Labels).To(Equal(map[string]string{
			"env": "prod", "both": "cluster", "tier": "gold", "app.kubernetes.io/managed-by": "muster",
			stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: classNamespace,
		}))
		g.Expect(imported.Annotations).To(HaveKeyWithValue("note", "kept"))
		g.Expect(imported.Annotations).NotTo(HaveKey("meta.helm.sh/release-name"))
		g.Expect(imported.Annotations).NotTo(HaveKey(stamp.ClusterNameAnnotation))
		g.Expect(imported.OwnerReferences).To(ConsistOf(metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "one", UID: cluster.UID}))
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
		g.Expect(config).NotTo(HaveKey("files"))
		g.Expect(config).NotTo(HaveKey("users"))
		g.Expect(config).NotTo(HaveKey("preKubeadmCommands"))
	})

	t.Run("ClusterGroup of the class", func(t *testing.T) {
		g := NewWithT(t)
		group := get(g, &fleetv1.ClusterGroup{}, classNamespace, "standard")
		g.Expect(group.Labels).To(Equal(map[string]string{
			"tier": "gold", "both": "class", "app.kubernetes.io/managed-by": "muster",
			stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: classNamespace,
		}))
		g.Expect(group.Spec.Selector).To(Equal(&metav1.LabelSelector{MatchLabels: classLabels}))
		g.Expect(group.OwnerReferences).To(ConsistOf(metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "ClusterClass", Name: "standard", UID: class.UID}))
	})

	t.Run("ClusterGroup beside the Cluster", func(t *testing.T) {
		g := NewWithT(t)
		group := get(g, &fleetv1.ClusterGroup{}, namespace, "standard."+classNamespace)
		g.Expect(group.Labels).To(HaveKeyWithValue("tier", "gold"))
		g.Expect(group.Labels).NotTo(HaveKey("fleet.cattle.io/shard-ref"))
		g.Expect(group.Spec.Selector).To(Equal(&metav1.LabelSelector{MatchLabels: classLabels}))
		g.Expect(group.OwnerReferences).To(BeEmpty())
	})

	t.Run("BundleNamespaceMapping", func(t *testing.T) {
		g := NewWithT(t)
		mapping := get(g, &fleetv1.BundleNamespaceMapping{}, classNamespace, namespace)
		g.Expect(mapping.NamespaceSelector).To(Equal(&metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}))
		g.Expect(mapping.BundleSelector).To(Equal(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "objectset.rio.cattle.io/hash", Operator: metav1.LabelSelectorOpDoesNotExist}}}))
		g.Expect(mapping.OwnerReferences).To(BeEmpty())
		g.Expect(mapping.Labels).To(HaveKeyWithValue("app.kubernetes.io/managed-by", "muster"))
	})

	t.Run("Namespace annotation", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			g.Expect(get(g, &corev1.Namespace{}, "", namespace).Annotations).To(HaveKeyWithValue(
				"field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace", "true"))
		}).Should(Succeed())
	})

	t.Run("condition on the Cluster", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			condition := conditions.Get(get(g, &clusterv1.Cluster{}, namespace, "one"), "FleetImported")
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue), condition.Message)
		}).Should(Succeed())
	})
}
