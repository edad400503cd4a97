package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// Muster can be taken away under everything that it imported: nothing waits for it. It
// leaves nothing behind to test, and has a stack of its own.
func TestUninstall(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	g.Expect(admin.Create(ctx, fixture.Config())).To(Succeed())
	s := newScene(t, g)
	s.imported(g, "one")
	s.imported(g, "two")
	paused := s.imported(g, "paused")
	g.Expect(admin.Patch(ctx, paused, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedCondition(g, paused).Reason).To(Equal("Paused")) }).Should(Succeed())
	newClass(g, s.namespace, "own", nil)
	for name, class := range map[string]string{"three": "own", "waiting": "none"} {
		g.Expect(admin.Create(ctx, fixture.Cluster(s.namespace, name, class, ""))).To(Succeed())
	}
	initialize(g, get(g, &clusterv1.Cluster{}, s.namespace, "three"))
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "three") }).Should(Succeed())

	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed())
	g.Expect(env.Stop(ctx, webhookProcess)).To(Succeed())
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	crd.SetName("fleetaddonconfigs.addons.cluster.x-k8s.io")
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "muster-system"}},
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "muster-mutating-webhook"}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "muster-validating-webhook"}},
		crd,
	} {
		g.Expect(admin.Delete(ctx, object)).To(Succeed())
	}

	var clusters clusterv1.ClusterList
	g.Expect(admin.List(ctx, &clusters)).To(Succeed())
	g.Expect(clusters.Items).To(HaveLen(5))
	for i := range clusters.Items {
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, &clusters.Items[i]))).To(Succeed())
	}
	var classes clusterv1.ClusterClassList
	g.Expect(admin.List(ctx, &classes)).To(Succeed())
	for i := range classes.Items {
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, &classes.Items[i]))).To(Succeed())
	}
	var namespaces corev1.NamespaceList
	g.Expect(admin.List(ctx, &namespaces)).To(Succeed())
	var ours []client.Object
	for i := range namespaces.Items {
		switch namespaces.Items[i].Name {
		case "default", "kube-system", "kube-public", "kube-node-lease":
			continue
		}
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, &namespaces.Items[i]))).To(Succeed())
		ours = append(ours, &namespaces.Items[i])
	}
	begin := time.Now()
	g.Eventually(func(g Gomega) {
		g.Expect(admin.List(ctx, &clusters)).To(Succeed())
		g.Expect(clusters.Items).To(BeEmpty())
		g.Expect(admin.List(ctx, &classes)).To(Succeed())
		g.Expect(classes.Items).To(BeEmpty())
		for _, namespace := range ours {
			err := admin.Get(ctx, client.ObjectKeyFromObject(namespace), namespace.DeepCopyObject().(client.Object))
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "namespace %s: %v", namespace.GetName(), err)
		}
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	t.Logf("%d namespaces were gone after %s", len(ours), time.Since(begin).Round(100*time.Millisecond))
}
