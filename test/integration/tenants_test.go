package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// tenant is a client of a user with these groups, as the API server knows impersonation.
func tenant(g Gomega, user string, groups ...string) client.Client {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	result, err := client.New(config, client.Options{Scheme: admin.Scheme()})
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
		return topologyCluster(s.namespace, name, "standard", s.classNamespace)
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
		cluster := topologyCluster(other, "bens", "own", "")
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
		g.Expect(ben.Create(ctx, topologyCluster(other, "open", "own", ""))).To(Succeed())
	})
	t.Run("unless the policy says Warn or Off", func(t *testing.T) {
		g := NewWithT(t)
		for i, policy := range []addonsv1.CrossNamespaceClassPolicy{addonsv1.CrossNamespaceClassWarn, addonsv1.CrossNamespaceClassOff} {
			setConfig(t, g, addonsv1.FleetAddonConfigSpec{Policy: &addonsv1.PolicyConfig{CrossNamespaceClass: policy}})
			g.Eventually(func() error { return ben.Create(ctx, cross(fmt.Sprintf("lax-%d", i))) }).Should(Succeed(), string(policy))
		}
	})
}
