package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// tenant is a client of a user with these groups, as the API server knows impersonation.
func tenant(g Gomega, user string, groups ...string) client.Client {
	result, err := fixture.ClientAs(env, user, groups...)
	g.Expect(err).NotTo(HaveOccurred())
	return result
}

// Naming a class of another namespace hands out that namespace's bundles: only those may
// who are allowed to get the class.
func TestTenants(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	other := newNamespace(t, g, "other-team", nil)
	newClass(g, other, "own", nil)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-clusters}
rules: [{apiGroups: [cluster.x-k8s.io], resources: [clusters], verbs: [get, create, update, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-classes}
rules: [{apiGroups: [cluster.x-k8s.io], resources: [clusterclasses], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: clusters}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-clusters}
subjects: [{kind: User, name: anna}, {kind: User, name: ben}, {kind: User, name: carla}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[3]s, name: clusters}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-clusters}
subjects: [{kind: User, name: ben}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[2]s, name: classes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-classes}
subjects: [{kind: User, name: anna}, {kind: Group, name: class-readers}]
`, s.namespace, s.classNamespace, other))).To(Succeed())

	anna, ben := tenant(g, "anna"), tenant(g, "ben")
	refused := func(g Gomega, err error) {
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(err.Error()).To(And(ContainSubstring(`user "ben"`), ContainSubstring("get clusterclasses.cluster.x-k8s.io"),
			ContainSubstring(fmt.Sprintf("namespace %q", s.classNamespace)), ContainSubstring("ask for a Role")))
	}
	cross := func(name string) *clusterv1.Cluster {
		return fixture.Cluster(s.namespace, name, "standard", s.classNamespace)
	}

	t.Run("who may get the class may use it", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() error { return anna.Create(ctx, cross("annas")) }).Should(Succeed())
	})
	t.Run("a group counts", func(t *testing.T) {
		NewWithT(t).Expect(tenant(g, "carla", "class-readers").Create(ctx, cross("carlas"))).To(Succeed())
	})
	t.Run("who may not is refused, dry run included", func(t *testing.T) {
		g := NewWithT(t)
		refused(g, ben.Create(ctx, cross("bens")))
		refused(g, ben.Create(ctx, cross("bens"), client.DryRunAll))
	})
	t.Run("as v1beta1 too", func(t *testing.T) {
		g := NewWithT(t)
		refused(g, ben.Create(ctx, object(g, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {namespace: %s, name: old}
spec: {topology: {class: standard, classNamespace: %s, version: v1.36.3}}
`, s.namespace, s.classNamespace))))
	})
	t.Run("and a rebase later is no way around", func(t *testing.T) {
		g := NewWithT(t)
		cluster := fixture.Cluster(other, "bens", "own", "")
		g.Expect(ben.Create(ctx, cluster)).To(Succeed())
		before := cluster.DeepCopy()
		cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: "standard", Namespace: s.classNamespace}
		refused(g, ben.Patch(ctx, cluster.DeepCopy(), client.MergeFrom(before)))
		g.Eventually(func(g Gomega) { // The syncer may just have written its condition.
			current := get(g, &clusterv1.Cluster{}, other, "bens")
			current.Spec.Topology.ClassRef = cluster.Spec.Topology.ClassRef
			refused(g, ben.Update(ctx, current))
		}).Should(Succeed())

		g.Consistently(func(g Gomega) {
			err := admin.Get(ctx, client.ObjectKey{Namespace: s.classNamespace, Name: other}, &fleetv1.BundleNamespaceMapping{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
		}).Should(Succeed())
	})
	t.Run("another change of a Cluster that uses the class asks nobody", func(t *testing.T) {
		g := NewWithT(t)
		var cluster clusterv1.Cluster
		g.Expect(ben.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "annas"}, &cluster)).To(Succeed())
		before := cluster.DeepCopy()
		cluster.Labels["by"] = "ben"
		g.Expect(ben.Patch(ctx, &cluster, client.MergeFrom(before))).To(Succeed())
	})
	t.Run("it fails closed, for such Clusters only", func(t *testing.T) {
		g := NewWithT(t)
		defer stop(t, g, webhookProcess)()
		g.Expect(anna.Create(ctx, cross("closed"))).To(MatchError(ContainSubstring("class-access.clusters.fleet.addons.cluster.x-k8s.io")))
		g.Expect(ben.Create(ctx, fixture.Cluster(other, "open", "own", ""))).To(Succeed())
	})
	t.Run("where everybody may read the classes, the verb use is asked about", func(t *testing.T) {
		g := NewWithT(t)
		setConfig(t, g, addonsv1.FleetAddonConfigSpec{Policy: &addonsv1.PolicyConfig{CrossNamespaceClassVerb: addonsv1.CrossNamespaceClassVerbUse}})
		var err error
		g.Eventually(func() error { // Until the webhook has seen the settings.
			err = anna.Create(ctx, cross("reader"), client.DryRunAll)
			return err
		}).ShouldNot(Succeed())
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(err.Error()).To(And(ContainSubstring("may not use clusterclasses.cluster.x-k8s.io"), ContainSubstring("with verb use on resource clusterclasses")))
		g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: %[1]s, name: class-user}
rules: [{apiGroups: [cluster.x-k8s.io], resources: [clusterclasses], resourceNames: [standard], verbs: [use]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: class-user}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: class-user}
subjects: [{kind: User, name: ben}]
`, s.classNamespace))).To(Succeed())
		defer func() {
			_, err := env.Kubectl(ctx, "-n", s.classNamespace, "delete", "rolebinding", "class-user")
			g.Expect(err).NotTo(HaveOccurred())
		}()
		g.Eventually(func() error { return ben.Create(ctx, cross("user")) }).Should(Succeed())
		g.Expect(apierrors.IsForbidden(anna.Create(ctx, cross("reader")))).To(BeTrue())
	})
	t.Run("unless the policy says Warn or Off", func(t *testing.T) {
		g := NewWithT(t)
		for i, policy := range []addonsv1.CrossNamespaceClassPolicy{addonsv1.CrossNamespaceClassWarn, addonsv1.CrossNamespaceClassOff} {
			setConfig(t, g, addonsv1.FleetAddonConfigSpec{Policy: &addonsv1.PolicyConfig{CrossNamespaceClass: policy}})
			g.Eventually(func() error { return ben.Create(ctx, cross(fmt.Sprintf("lax-%d", i))) }).Should(Succeed(), string(policy))
		}
	})
}

// Who may write a Cluster may write its annotations: with those of the pin an unselected
// one must not become claimed, for what is claimed is a user of its class.
func TestPinForgedByAnUpdate(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"fleet": "wanted"}},
	}})
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: %[1]s, name: forger}
rules: [{apiGroups: [cluster.x-k8s.io], resources: [clusters], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: forger}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: forger}
subjects: [{kind: User, name: mallory}]
`, s.namespace))).To(Succeed())
	var cluster *clusterv1.Cluster
	g.Eventually(func(g Gomega) { // Until the webhook has seen the settings.
		cluster = fixture.Cluster(s.namespace, "forged", "standard", s.classNamespace)
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, cluster.DeepCopy()))).To(Succeed())
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{}))
	}).Should(Succeed())
	initialize(g, cluster)

	mallory := tenant(g, "mallory")
	for name, pin := range map[string]stamp.Pin{
		"both":  {OwnedBy: "fleet-addon-config", ClusterName: "forged"},
		"owner": {OwnedBy: "fleet-addon-config"},
		"name":  {ClusterName: "forged"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var patched clusterv1.Cluster
			g.Eventually(func() error {
				if err := mallory.Get(ctx, client.ObjectKeyFromObject(cluster), &patched); err != nil {
					return err
				}
				before := patched.DeepCopy()
				metav1.SetMetaDataAnnotation(&patched.ObjectMeta, "tried", name)
				if pin.OwnedBy != "" {
					patched.Annotations[stamp.OwnedByAnnotation] = pin.OwnedBy
				}
				if pin.ClusterName != "" {
					patched.Annotations[stamp.ClusterNameAnnotation] = pin.ClusterName
				}
				return mallory.Patch(ctx, &patched, client.MergeFrom(before))
			}).Should(Succeed())
			g.Expect(patched.Annotations).To(HaveKeyWithValue("tried", name))
			g.Expect(patched.Annotations).NotTo(Or(HaveKey(stamp.OwnedByAnnotation), HaveKey(stamp.ClusterNameAnnotation)))
		})
	}
	g.Consistently(func(g Gomega) {
		for _, absent := range []client.Object{
			&fleetv1.BundleNamespaceMapping{ObjectMeta: metav1.ObjectMeta{Namespace: s.classNamespace, Name: s.namespace}},
			&fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "standard." + s.classNamespace}},
			&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "forged"}},
		} {
			err := admin.Get(ctx, client.ObjectKeyFromObject(absent), absent)
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%T: %v", absent, err)
		}
		g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).To(BeEmpty())
	}).Should(Succeed())

	t.Run("but the syncer pins what is selected later", func(t *testing.T) {
		g := NewWithT(t)
		namespace := get(g, &corev1.Namespace{}, "", s.namespace)
		before := namespace.DeepCopy()
		namespace.Labels["fleet"] = "wanted"
		g.Expect(admin.Patch(ctx, namespace, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(stamp.PinOf(get(g, &clusterv1.Cluster{}, s.namespace, "forged").Annotations)).
				To(Equal(stamp.Pin{OwnedBy: "fleet-addon-config", ClusterName: "forged"}))
			fleetCluster(g, s.namespace, "forged")
		}).Should(Succeed())
	})
}

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
