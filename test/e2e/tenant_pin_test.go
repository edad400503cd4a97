package e2e

import (
	"encoding/json"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
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
