package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// bookkeeping are the keys by which Muster remembers, on Fleet's objects, what it did.
var bookkeeping = map[string][]string{
	"labels": {stamp.ClassNameLabel, stamp.ClassNamespaceLabel},
	"annotations": {
		stamp.ReleasedAnnotation, stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation,
		desired.TargetingAnnotation, desired.HashAnnotation, desired.ClassAnnotation,
	},
}

// A tenant may do everything with Fleet's objects of his namespace, but not forge what
// Muster wrote down there.
func TestBookkeepingIsMustersOwn(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
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
subjects: [{kind: User, name: tom}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: cluster-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: User, name: tom}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: restores-backups}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: everything}
subjects: [{kind: User, name: backup}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-restores-backups}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: muster-bookkeeper}
subjects: [{kind: User, name: backup}]
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %[1]s, name: bare, labels: {app.kubernetes.io/managed-by: muster}}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: ClusterGroup
metadata: {namespace: %[1]s, name: bare}
spec: {selector: {}}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: BundleNamespaceMapping
metadata: {namespace: %[1]s, name: bare}
`, s.namespace))).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "clusterrolebinding", "test-restores-backups"); err != nil {
			t.Error(err)
		}
	})
	tom := tenant(g, "tom")
	g.Eventually(func() error { // The authorizer learns of the role.
		return tom.Patch(ctx, target(fleetVersion, "Cluster", s.namespace, "bare"), mergePatch(`{"metadata":{"labels":{"a":"b"}}}`))
	}).Should(Succeed())
	refused := func(g Gomega, err error, key string) {
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(err.Error()).To(And(ContainSubstring("ValidatingAdmissionPolicy 'muster-bookkeeping'"), ContainSubstring(key)))
	}
	entry := func(where, key, value string) client.Patch {
		return mergePatch(fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, where, key, value))
	}
	made := func(kind, where, key string) *unstructured.Unstructured {
		object := target(fleetVersion, kind, s.namespace, "forged")
		if where == "labels" {
			object.SetLabels(map[string]string{key: "x", desired.ManagedByLabel: desired.ManagedBy})
		} else {
			object.SetAnnotations(map[string]string{key: "true"})
		}
		return object
	}

	for where, keys := range bookkeeping {
		for _, key := range keys {
			for _, kind := range []string{"Cluster", "ClusterGroup", "BundleNamespaceMapping"} {
				t.Run(kind+" "+key, func(t *testing.T) {
					g := NewWithT(t)
					refused(g, tom.Create(ctx, made(kind, where, key)), key)
					refused(g, tom.Patch(ctx, target(fleetVersion, kind, s.namespace, "bare"), entry(where, key, `"true"`)), key)

					// Who administers the whole cluster may, and so may who was given the verb for it.
					g.Expect(admin.Create(ctx, made(kind, where, key), client.DryRunAll)).To(Succeed())
					g.Eventually(func() error { return tenant(g, "backup").Create(ctx, made(kind, where, key), client.DryRunAll) }).Should(Succeed())
				})
			}
		}
	}

	t.Run("what Muster wrote is neither changed nor removed", func(t *testing.T) {
		g := NewWithT(t)
		one := target(fleetVersion, "Cluster", s.namespace, "one")
		for where, keys := range map[string][]string{
			"labels":      {stamp.ClassNameLabel, stamp.ClassNamespaceLabel},
			"annotations": {desired.ImportedFromAnnotation, desired.HashAnnotation, desired.TargetingAnnotation},
		} {
			for _, key := range keys {
				refused(g, tom.Patch(ctx, one.DeepCopy(), entry(where, key, `"x"`)), key)
				refused(g, tom.Patch(ctx, one.DeepCopy(), entry(where, key, `null`)), key)
			}
		}
		// The message says what to do.
		err := tom.Patch(ctx, one.DeepCopy(), entry("labels", stamp.ClassNameLabel, `"x"`))
		g.Expect(err).To(MatchError(And(ContainSubstring("Leave it as it is"), ContainSubstring("labels of your own"), ContainSubstring("bookkeep"))))
	})

	t.Run("everything else passes", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(tom.Patch(ctx, target(fleetVersion, "Cluster", s.namespace, "bare"), entry("annotations", stamp.AdoptAnnotation, `"true"`), client.DryRunAll)).To(Succeed())
		g.Expect(tom.Patch(ctx, target(fleetVersion, "Cluster", s.namespace, "bare"), entry("labels", desired.ManagedByLabel, "null"), client.DryRunAll)).To(Succeed())
		one := target(fleetVersion, "Cluster", s.namespace, "one")
		g.Expect(tom.Get(ctx, client.ObjectKeyFromObject(one), one)).To(Succeed())
		one.SetAnnotations(withEntry(one.GetAnnotations(), "a", "b"))
		g.Expect(tom.Update(ctx, one, client.DryRunAll)).To(Succeed(), "the whole object, our keys unchanged")
		g.Expect(tom.Delete(ctx, target(fleetVersion, "Cluster", s.namespace, "one"), client.DryRunAll)).To(Succeed())
	})
}

func withEntry(entries map[string]string, key, value string) map[string]string {
	result := map[string]string{key: value}
	for k, v := range entries {
		result[k] = v
	}
	return result
}
