package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

const workspace = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"

// forged returns a Fleet Cluster that says that it is Muster's and of the scene's class.
func (s scene) forged(name string, annotations map[string]string) *fleetv1.Cluster {
	cluster := &fleetv1.Cluster{}
	cluster.Namespace, cluster.Name, cluster.Annotations = s.namespace, name, annotations
	cluster.Labels = map[string]string{
		stamp.ManagedByLabel: stamp.ManagedBy, stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: s.classNamespace,
	}
	return cluster
}

// closed demands that nothing opens the class's namespace to the scene's.
func (s scene) closed(g Gomega) {
	g.Consistently(func(g Gomega) {
		isGone(g, s.mapping())
		isGone(g, s.group())
	}).Should(Succeed())
}

// 1. A Fleet Cluster opens no namespace to another, whatever it says of itself.
func TestForgedFleetClusterOpensNothing(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	own := fixture.Cluster(s.namespace, "own", "", "")
	own.Spec.Topology = clusterv1.Topology{}
	g.Expect(admin.Create(ctx, own)).To(Succeed())
	initialize(g, own)
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "own") }).Should(Succeed())

	t.Run("made by hand, released", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(admin.Create(ctx, s.forged("released", map[string]string{stamp.ReleasedAnnotation: "true"}))).To(Succeed())
		s.closed(g)
	})
	t.Run("made by hand, imported from a Cluster that exists", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(admin.Create(ctx, s.forged("imported", map[string]string{stamp.ImportedFromAnnotation: "own"}))).To(Succeed())
		s.closed(g)
	})
	t.Run("one of ours, relabelled", func(t *testing.T) {
		g := NewWithT(t)
		live := fleetCluster(g, s.namespace, "own")
		before := live.DeepCopy()
		live.Labels[stamp.ClassNameLabel], live.Labels[stamp.ClassNamespaceLabel] = "standard", s.classNamespace
		g.Expect(admin.Patch(ctx, live, client.MergeFrom(before))).To(Succeed())
		s.closed(g)
	})
	t.Run("nor does it open again what was closed", func(t *testing.T) {
		g := NewWithT(t)
		user := s.imported(g, "user")
		g.Eventually(func(g Gomega) { exists(g, s.mapping()) }).Should(Succeed())
		deleteNow(g, user)
		// The syncer makes the mapping again as long as its cache has the Cluster.
		g.Eventually(func(g Gomega) {
			isGone(g, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "user"}})
		}).Should(Succeed())
		// The forged ones keep the mapping; what keeps it is not enough to make it again.
		g.Expect(admin.Delete(ctx, s.mapping())).To(Succeed())
		g.Eventually(func(g Gomega) { isGone(g, s.mapping()) }).Should(Succeed())
		g.Consistently(func(g Gomega) { isGone(g, s.mapping()) }).Should(Succeed())
	})
}

// 2. A pin that somebody writes onto a Cluster claims nothing, whether the webhook is
// there to take it off or not.
func TestForgedPinClaimsNothing(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"import": "yes"}},
	}})
	cluster := fixture.Cluster(s.namespace, "one", "standard", s.classNamespace)
	g.Eventually(func(g Gomega) {
		g.Expect(warnedApply(g, fmt.Sprintf(topologyYAML, s.namespace, "probe", "standard", s.classNamespace), "--dry-run=server")).To(ContainSubstring("namespaceSelector"))
	}).Should(Succeed())
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	forge := func(g Gomega) {
		before := cluster.DeepCopy()
		metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, stamp.OwnedByAnnotation, "fleet-addon-config")
		metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, stamp.ClusterNameAnnotation, "one")
		g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	}
	unopened := func(g Gomega) {
		s.closed(g)
		g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).NotTo(HaveKey(workspace))
		isGone(g, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "one"}})
	}

	t.Run("the webhook takes it off", func(t *testing.T) {
		g := NewWithT(t)
		forge(g)
		g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{}))
		unopened(g)
	})
	t.Run("without the webhook it is not believed", func(t *testing.T) {
		g := NewWithT(t)
		stop(t, g, webhookProcess)
		forge(g)
		g.Expect(stamp.PinOf(cluster.Annotations).IsComplete()).To(BeTrue())
		unopened(g)
	})
}

// 22. A key of ours that nobody wants goes, whoever wrote it.
func TestOwnKeysThatNobodyWantsGo(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	s.imported(g, "user")
	plain := fixture.Cluster(s.namespace, "plain", "", "")
	plain.Spec.Topology = clusterv1.Topology{}
	g.Expect(admin.Create(ctx, plain)).To(Succeed())
	initialize(g, plain)
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "plain") }).Should(Succeed())
	quiet(g)

	foreign := stamp.Domain + "/foreign"
	for _, object := range []client.Object{fleetCluster(g, s.namespace, "plain"), s.group(), s.mapping()} {
		exists(g, object)
		before := object.DeepCopyObject().(client.Object)
		annotations := map[string]string{foreign: "x", "others.example/note": "stays"}
		for key, value := range object.GetAnnotations() {
			annotations[key] = value
		}
		object.SetAnnotations(annotations)
		labels := object.GetLabels()
		if _, ok := object.(*fleetv1.ClusterGroup); !ok {
			labels[stamp.ClassNameLabel] = "x"
		}
		object.SetLabels(labels)
		g.Expect(admin.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func(g Gomega) {
			exists(g, object)
			g.Expect(object.GetAnnotations()).To(And(Not(HaveKey(foreign)), HaveKeyWithValue("others.example/note", "stays")), "%T", object)
			if _, ok := object.(*fleetv1.ClusterGroup); !ok {
				g.Expect(object.GetLabels()).NotTo(HaveKey(stamp.ClassNameLabel), "%T", object)
			}
		}).Should(Succeed())
	}
}

// A mapping that somebody has edited is retired like any other: what an apply does not
// mention stays as whoever wrote it left it, and would go on mapping.
func TestEditedMappingIsRetired(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	user := s.imported(g, "user")
	mapping := s.mapping()
	g.Eventually(func(g Gomega) { exists(g, mapping) }).Should(Succeed())
	deployment := &fleetv1.BundleDeployment{}
	deployment.Namespace, deployment.Name = newNamespace(t, g, "cluster", nil), "app"
	deployment.Labels = map[string]string{
		fleetv1.BundleLabel: "app", fleetv1.BundleNamespaceLabel: s.classNamespace,
		fleetv1.ClusterLabel: "user", fleetv1.ClusterNamespaceLabel: s.namespace,
	}
	g.Expect(admin.Create(ctx, deployment)).To(Succeed())
	startSyncer := stop(t, g, syncerProcess)
	before := mapping.DeepCopy()
	mapping.BundleSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"edited": "yes"}}
	mapping.NamespaceSelector = &metav1.LabelSelector{}
	g.Expect(admin.Patch(ctx, mapping, client.MergeFrom(before), client.FieldOwner("somebody"))).To(Succeed())
	deleteNow(g, user)
	startSyncer()
	g.Eventually(func(g Gomega) { g.Expect(isRetired(g, s)).To(BeTrue()) }).Should(Succeed())
	g.Expect(admin.Delete(ctx, deployment)).To(Succeed())
	g.Eventually(func(g Gomega) { isGone(g, s.mapping()) }).Should(Succeed())
}
