package channels

import (
	"fmt"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const patience = time.Minute

// works imports a Cluster, and checks that the policies protect it.
func (s *scene) works() {
	s.Helper()
	g := NewWithT(s.T)
	g.SetDefaultEventuallyTimeout(patience)
	for _, name := range []string{"team", "classes"} {
		g.Expect(s.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	}
	g.Expect(s.admin.Create(ctx, fixture.Class("classes", "standard", nil))).To(Succeed())
	cluster := fixture.Cluster("team", "one", "standard", "classes")
	g.Expect(s.admin.Create(ctx, cluster)).To(Succeed())
	g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"), "the webhook was asked")
	g.Expect(fixture.Initialize(ctx, s.admin, cluster)).To(Succeed())
	imported := &fleetv1.Cluster{}
	g.Eventually(func() error {
		return s.admin.Get(ctx, client.ObjectKey{Namespace: "team", Name: "one"}, imported)
	}).Should(Succeed())
	g.Eventually(func() error {
		return s.admin.Get(ctx, client.ObjectKey{Namespace: "classes", Name: "team"}, &fleetv1.BundleNamespaceMapping{})
	}).Should(Succeed())

	s.holds(g, cluster)
	s.protects(g, cluster)
	g.Expect(fixture.NothingRefused(s.env, s.namespace, []string{"muster-webhook", "muster-syncer"}, func(e stack.AuditEvent) bool {
		return e.UserAgent == "thief"
	})).To(Succeed())
}

// holds upgrades a Cluster whose add-on is never ready, so that its hold is there when Muster is uninstalled.
func (s *scene) holds(g Gomega, cluster *clusterv1.Cluster) {
	namespace := stamp.FleetNamespace(cluster.Namespace, cluster.Name)
	g.Eventually(func() error { return s.admin.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}) }).Should(Succeed())
	addOn := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cni", Labels: map[string]string{
		fleetv1.BundleLabel: "cni", fleetv1.BundleNamespaceLabel: cluster.Namespace,
		fleetv1.ClusterLabel: cluster.Name, fleetv1.ClusterNamespaceLabel: cluster.Namespace,
	}}}
	addOn.Spec.DeploymentID = "1"
	g.Expect(s.admin.Create(ctx, addOn)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(s.admin.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		g.Expect(conditions.IsTrue(cluster, addonsv1.FleetImportedCondition)).To(BeTrue())
	}).Should(Succeed())
	upgrade := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"30m"}},"spec":{"topology":{"version":"v1.37.0"}}}`, stamp.HoldAnnotation)
	g.Expect(s.admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, upgrade))).To(Succeed())
	g.Expect(cluster.Annotations).To(HaveKey(stamp.HookAnnotation))
}

// protects checks that the policies recognize the syncer in its namespace, and that the webhook recognizes other
// users.
func (s *scene) protects(g Gomega, cluster *clusterv1.Cluster) {
	thief, err := fixture.ClientOfAccount(ctx, s.env, s.admin, s.namespace, "muster-syncer", "thief")
	g.Expect(err).NotTo(HaveOccurred())
	pause := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`))
	g.Expect(thief.Patch(ctx, cluster.DeepCopy(), pause, client.DryRunAll)).
		To(MatchError(ContainSubstring("ValidatingAdmissionPolicy 'muster-syncer-clusters'")))

	s.sh(`
kubectl create clusterrolebinding test-tenants --clusterrole=admin --user=tom
kubectl create clusterrole test-clusters --verb=create,patch,update --resource=clusters.cluster.x-k8s.io,clusters.fleet.cattle.io
kubectl create clusterrolebinding test-clusters --clusterrole=test-clusters --user=tom
`)
	tom, err := fixture.ClientAs(s.env, "tom")
	g.Expect(err).NotTo(HaveOccurred())
	for _, namespace := range []string{"team", s.namespace} {
		g.Eventually(func() error {
			return tom.Create(ctx, fixture.Cluster(namespace, "unasked", "standard", "classes"), client.DryRunAll)
		}).Should(MatchError(ContainSubstring("class-access.clusters.fleet.addons.cluster.x-k8s.io")), "in "+namespace)
	}
	forged := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "forged", Labels: map[string]string{stamp.ClassNameLabel: "x"}}}
	g.Expect(tom.Create(ctx, forged, client.DryRunAll)).To(MatchError(ContainSubstring("ValidatingAdmissionPolicy 'muster-bookkeeping'")))
}

// isRetained checks that Clusters and their Fleet objects outlived Muster, and that no hold of an upgrade did.
func (s *scene) isRetained(g Gomega) {
	cluster := &clusterv1.Cluster{}
	g.Expect(s.admin.Get(ctx, client.ObjectKey{Namespace: "team", Name: "one"}, cluster)).To(Succeed())
	g.Expect(cluster.Annotations).NotTo(HaveKey(stamp.HookAnnotation))
	g.Expect(cluster.Annotations).To(HaveKey(stamp.HoldAnnotation))
	g.Expect(s.admin.Get(ctx, client.ObjectKey{Namespace: "team", Name: "one"}, &fleetv1.Cluster{})).To(Succeed())
	g.Expect(s.admin.Get(ctx, client.ObjectKey{Namespace: "classes", Name: "team"}, &fleetv1.BundleNamespaceMapping{})).To(Succeed())
	jobs := &batchv1.JobList{}
	g.Expect(s.admin.List(ctx, jobs, client.InNamespace(s.namespace))).To(Succeed())
	g.Expect(jobs.Items).To(BeEmpty())
}
