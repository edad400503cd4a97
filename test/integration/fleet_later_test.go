package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
)

// Muster may be installed before Fleet: it waits, says so, and needs no restart; nor does it when
// a CRD goes and comes back. With
// Fleet's CRDs goes all that was imported, of other tests, too: a stack of its own.
func TestFleetIsInstalledLater(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	s := newScene(t, g)
	start := stop(t, g, syncerProcess)
	restore := removeCRDs(g, "clusters.fleet.cattle.io", "clustergroups.fleet.cattle.io", "bundlenamespacemappings.fleet.cattle.io")
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{})
	cluster := fixture.Cluster(s.namespace, "early", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	start()

	condition := func(g Gomega, name string) *metav1.Condition {
		config := get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName)
		found := meta.FindStatusCondition(config.Status.Conditions, name)
		g.Expect(found).NotTo(BeNil(), "no %s in %v", name, config.Status.Conditions)
		return found
	}
	g.Eventually(func(g Gomega) {
		g.Expect(condition(g, "Ready").Status).To(Equal(metav1.ConditionFalse))
		g.Expect(condition(g, "APIsAvailable").Message).To(ContainSubstring("ClusterGroup.fleet.cattle.io"))
	}).Should(Succeed())
	processes := env.Processes()

	restore()
	g.Eventually(func(g Gomega) {
		fleetCluster(g, s.namespace, "early")
		exists(g, s.group())
		exists(g, s.mapping())
		g.Expect(condition(g, "Ready").Status).To(Equal(metav1.ConditionTrue), condition(g, "Ready").Message)
	}).Should(Succeed())
	g.Expect(env.Processes()).To(Equal(processes), "a process was restarted")

	provoked[s.classNamespace] = true // Nothing may be made while the CRD is being deleted.
	restore = removeCRDs(g, "bundlenamespacemappings.fleet.cattle.io")
	g.Eventually(func(g Gomega) {
		g.Expect(condition(g, "APIsAvailable").Status).To(Equal(metav1.ConditionFalse))
		g.Expect(condition(g, "APIsAvailable").Message).To(ContainSubstring("BundleNamespaceMapping.fleet.cattle.io"))
		g.Expect(condition(g, "Ready").Status).To(Equal(metav1.ConditionFalse))
	}).Should(Succeed())
	restore()
	g.Eventually(func(g Gomega) {
		g.Expect(condition(g, "APIsAvailable").Status).To(Equal(metav1.ConditionTrue))
		exists(g, s.mapping())
	}).Should(Succeed())
}

// removeCRDs deletes CRDs, and returns how to bring them back.
func removeCRDs(g Gomega, names ...string) (restore func()) {
	var saved []*unstructured.Unstructured
	for _, name := range names {
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		g.Expect(admin.Get(ctx, client.ObjectKey{Name: name}, crd)).To(Succeed())
		g.Expect(admin.Delete(ctx, crd.DeepCopy())).To(Succeed())
		saved = append(saved, crd)
	}
	for _, crd := range saved {
		g.Eventually(func(g Gomega) {
			err := admin.Get(ctx, client.ObjectKeyFromObject(crd), crd.DeepCopy())
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
		}).Should(Succeed())
	}
	return func() {
		for _, crd := range saved {
			crd.SetResourceVersion("")
			crd.SetUID("")
			crd.SetManagedFields(nil)
			unstructured.RemoveNestedField(crd.Object, "status")
			g.Expect(admin.Create(ctx, crd)).To(Succeed())
		}
	}
}
