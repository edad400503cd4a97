package registrar

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// The registrar may be installed before Fleet's CRDs: it waits, and needs no restart. With the
// CRDs goes all that is registered, of other tests, too: a stack of its own.
func TestFleetIsInstalledLater(t *testing.T) {
	g := NewWithT(t)
	own, err := stack.Up(ctx, stack.Options{Profile: stack.API, Muster: true, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	shared, sharedAdmin := env, admin
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(own.LogTail("muster-registrar"))
		}
		env, admin = shared, sharedAdmin
		g.Expect(own.Down()).To(Succeed())
	})
	g.Expect(fixture.Use(&env, &admin)(own)).To(Succeed())
	g.Expect(setServer("https://fleet.example.com")).To(Succeed())

	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: "clusterregistrations.fleet.cattle.io"}, crd)).To(Succeed())
	g.Expect(admin.Delete(ctx, crd.DeepCopy())).To(Succeed())
	g.Eventually(func(g Gomega) {
		err := admin.Get(ctx, client.ObjectKeyFromObject(crd), crd.DeepCopy())
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
	}).Should(Succeed())
	g.Expect(env.StartComponent(ctx, "registrar")).To(Succeed())
	g.Eventually(func() string { return env.LogTail("muster-registrar") }).Should(ContainSubstring("ClusterRegistration.fleet.cattle.io"))
	processes := env.Processes()

	crd.SetResourceVersion("")
	crd.SetUID("")
	crd.SetManagedFields(nil)
	unstructured.RemoveNestedField(crd.Object, "status")
	g.Expect(admin.Create(ctx, crd)).To(Succeed())
	ready(g, "early")
	g.Expect(env.Processes()).To(Equal(processes), "a process was restarted")
}
