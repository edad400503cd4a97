package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A role in one namespace that includes BundleNamespaceMappings lets a tenant deploy to the
// clusters of every namespace: Fleet asks nobody there. The optional component refuses it, and
// leaves the syncer and cluster administrators alone.
func TestMappingsOfTenants(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	namespace := newNamespace(t, g, "tenant", nil)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: %[1]s, name: everything}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: everything}
subjects: [{kind: User, name: mallory}]
`, namespace))).To(Succeed())
	mallory := tenant(g, "mallory")
	toEverybody := func(name string) *fleetv1.BundleNamespaceMapping {
		return &fleetv1.BundleNamespaceMapping{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
			BundleSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{},
		}
	}

	// Without the component, RBAC in the tenant's own namespace is all that is asked for.
	g.Eventually(func() error { return mallory.Create(ctx, toEverybody("open")) }).Should(Succeed())
	closed := toEverybody("closed")
	closed.NamespaceSelector = nil
	g.Expect(mallory.Create(ctx, closed)).To(Succeed())

	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "--ignore-not-found", "validatingadmissionpolicybinding,validatingadmissionpolicy", "muster-mapping-authors"); err != nil {
			t.Error(err)
		}
	})
	g.Expect(env.StartComponent(ctx, "mapping-authors")).To(Succeed())
	refused := func(g Gomega, err error) {
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(err).To(MatchError(ContainSubstring("ask a cluster administrator to make it")))
	}
	g.Eventually(func(g Gomega) { refused(g, mallory.Create(ctx, toEverybody("new"), client.DryRunAll)) }).Should(Succeed())

	change := func(name, body string) error {
		return mallory.Patch(ctx, target(fleetVersion, "BundleNamespaceMapping", namespace, name), mergePatch(body))
	}
	t.Run("a tenant opens no namespace to others", func(t *testing.T) {
		g := NewWithT(t)
		refused(g, mallory.Create(ctx, toEverybody("new")))
		refused(g, change("closed", `{"namespaceSelector":{}}`))
		refused(g, change("open", `{"bundleSelector":{"matchLabels":{"a":"b"}}}`))
	})
	t.Run("a tenant may label and delete a mapping that is there", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(change("open", `{"metadata":{"labels":{"a":"b"}}}`)).To(Succeed())
		g.Expect(mallory.Delete(ctx, toEverybody("open"))).To(Succeed())
	})
	t.Run("the syncer makes its mappings", func(t *testing.T) {
		g := NewWithT(t)
		s.imported(g, "one")
		g.Eventually(func() error {
			return admin.Get(ctx, client.ObjectKey{Namespace: s.classNamespace, Name: s.namespace}, &fleetv1.BundleNamespaceMapping{})
		}).Should(Succeed())
	})
	t.Run("an administrator makes any", func(t *testing.T) {
		NewWithT(t).Expect(admin.Create(ctx, toEverybody("new"))).To(Succeed())
	})
}
