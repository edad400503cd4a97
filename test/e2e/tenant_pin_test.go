package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// pinTricks are ways to have a Cluster taken in that no selector selects. It uses the
// platform's class with every right: it is the import that nobody has granted.
func pinTricks() []trick {
	onExisting := func(name string, try func(m *tenant, cluster *clusterv1.Cluster) error) trick {
		return trick{name: name, unselected: true, after: nothingClaimed, play: func(g Gomega, m *tenant) {
			cluster := m.ofPlatform(g, "theirs", platformClass, nil)
			for range 3 {
				m.try("forging the pin", try(m, cluster.DeepCopy()))
				time.Sleep(200 * time.Millisecond)
			}
		}}
	}
	return []trick{
		onExisting("a pin forged by a patch", func(m *tenant, cluster *clusterv1.Cluster) error {
			return m.relabel(cluster, nil, pin)
		}),
		onExisting("a pin forged by an update", func(m *tenant, cluster *clusterv1.Cluster) error {
			if err := m.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
				return err
			}
			cluster.Annotations = pin
			return m.Update(ctx, cluster)
		}),
		onExisting("a pin forged in two steps", func(m *tenant, cluster *clusterv1.Cluster) error {
			if err := m.relabel(cluster, nil, map[string]string{stamp.OwnedByAnnotation: pin[stamp.OwnedByAnnotation]}); err != nil {
				return err
			}
			return m.relabel(cluster, nil, map[string]string{stamp.ClusterNameAnnotation: pin[stamp.ClusterNameAnnotation]})
		}),
		onExisting("a pin forged through v1beta1", func(m *tenant, cluster *clusterv1.Cluster) error {
			old := &unstructured.Unstructured{}
			old.SetAPIVersion("cluster.x-k8s.io/v1beta1")
			old.SetKind("Cluster")
			old.SetNamespace(cluster.Namespace)
			old.SetName(cluster.Name)
			return m.relabel(old, nil, pin)
		}),
		onExisting("a pin forged through the status", func(m *tenant, cluster *clusterv1.Cluster) error {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": pin}, "status": map[string]any{"phase": "Provisioned"}})
			if err != nil {
				return err
			}
			return m.Status().Patch(ctx, cluster, client.RawPatch(types.MergePatchType, patch))
		}),
		onExisting("a pin applied as addon-provider-fleet", func(m *tenant, cluster *clusterv1.Cluster) error {
			return m.applyPin("addon-provider-fleet", cluster.Name)
		}),
		onExisting("a pin applied as x-addon-provider-fleet", func(m *tenant, cluster *clusterv1.Cluster) error {
			return m.applyPin("x-addon-provider-fleet", cluster.Name)
		}),
		onExisting("a pin forged on a Cluster that is paused meanwhile", func(m *tenant, cluster *clusterv1.Cluster) error {
			if err := m.Patch(ctx, cluster, mergePatch(`{"spec":{"paused":true}}`)); err != nil {
				return err
			}
			if err := m.relabel(cluster, nil, pin); err != nil {
				return err
			}
			return m.Patch(ctx, cluster, mergePatch(`{"spec":{"paused":false}}`))
		}),
		{name: "a pin brought along at create", unselected: true, after: nothingClaimed, play: func(g Gomega, m *tenant) {
			m.ofPlatform(g, "theirs", platformClass, pin)
		}},
		{name: "a pin brought along with generateName", unselected: true, after: nothingClaimed, play: func(g Gomega, m *tenant) {
			cluster := m.topology("", platformClass, platform)
			cluster.GenerateName, cluster.Annotations = "theirs-", pin
			g.Expect(admin.Create(ctx, cluster)).To(Succeed())
			m.initialize(g, cluster)
		}},
		{name: "a Fleet Cluster made for a Cluster that nothing selects", unselected: true, after: keptAtMost, play: func(g Gomega, m *tenant) {
			cluster := m.ofPlatform(g, "theirs", platformClass, nil)
			m.try("making it", m.Create(ctx, m.fleetCluster("theirs", importedFrom("theirs"))))
			m.try("forging the pin", m.relabel(cluster, nil, map[string]string{
				stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "theirs"}))
		}},
		{name: "class labels forged for the selector", after: nothingClaimed, play: func(g Gomega, m *tenant) {
			cluster := m.ofPlatform(g, "theirs", "never", nil)
			m.try("forging a label", m.relabel(cluster, map[string]string{stamp.ClassNameLabel: platformClass}, nil))
			m.try("and the pin with it", m.relabel(cluster, platformLabels, pin))
		}},
	}
}

// nothingClaimed checks that no Cluster of the namespace was taken in.
func nothingClaimed(g Gomega, m *tenant) {
	var clusters clusterv1.ClusterList
	g.Expect(admin.List(ctx, &clusters, client.InNamespace(m.namespace))).To(Succeed())
	g.Expect(clusters.Items).NotTo(BeEmpty())
	for _, cluster := range clusters.Items {
		g.Expect(stamp.PinOf(cluster.Annotations).IsComplete()).To(BeFalse(), "Cluster %s is pinned: %v", cluster.Name, cluster.Annotations)
	}
	nothingAnnotated(g, m)
}

// keptAtMost checks that a Cluster that nothing selects is told so, even if it is pinned to what
// the tenant has made for it.
func keptAtMost(g Gomega, m *tenant) {
	var clusters clusterv1.ClusterList
	g.Expect(admin.List(ctx, &clusters, client.InNamespace(m.namespace))).To(Succeed())
	g.Expect(clusters.Items).NotTo(BeEmpty())
	for _, cluster := range clusters.Items {
		if told := conditions.Get(&cluster, "FleetImported"); told != nil {
			g.Expect(told.Reason).To(Equal("Deselected"), "Cluster %s: %s", cluster.Name, told.Message)
		}
	}
	nothingAnnotated(g, m)
}

func nothingAnnotated(g Gomega, m *tenant) {
	namespace := &corev1.Namespace{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: m.namespace}, namespace)).To(Succeed())
	g.Expect(namespace.Annotations).NotTo(HaveKey("field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"))
}

func (m *tenant) applyPin(manager, name string) error {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	object.SetKind("Cluster")
	object.SetNamespace(m.namespace)
	object.SetName(name)
	object.SetAnnotations(pin)
	return m.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager), client.ForceOwnership)
}

func mergePatch(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }

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
