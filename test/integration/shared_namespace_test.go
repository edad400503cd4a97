package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync"
	"github.com/muster-fleet/muster/test/fixture"
)

// Fleet derives one namespace for Clusters of two teams. Whoever is second does not get there:
// the webhook refuses the Cluster, and the syncer does not import one that passed it.
func TestOneFleetNamespaceForTwo(t *testing.T) {
	const (
		first, second = "team-a", "team"
		one, other    = "production-eu-west-1-payments-cluster-0001", "a-production-eu-west-1-payments-cluster-00013967"
		shared        = "cluster-team-a-production-eu-west-1-payments-cluster-0001-a7464"
	)
	g := NewWithT(t)
	noConfig(t)
	for _, name := range []string{first, second} {
		namespace := &corev1.Namespace{}
		namespace.Name = name
		g.Expect(admin.Create(ctx, namespace)).To(Succeed())
		newClass(g, name, "standard", nil)
	}
	rightful := fixture.Cluster(first, one, "standard", first)
	g.Expect(admin.Create(ctx, rightful)).To(Succeed())
	create := func() error { return admin.Create(ctx, fixture.Cluster(second, other, "standard", second)) }
	isRefused := And(Satisfy(apierrors.IsForbidden), MatchError(ContainSubstring("Fleet would keep it in Namespace %q", shared)), MatchError(ContainSubstring("for example %q", other+"-2")))
	// Its pin is enough.
	g.Eventually(func() error {
		return admin.Create(ctx, fixture.Cluster(second, other, "standard", second), client.DryRunAll)
	}).Should(isRefused)
	initialize(g, rightful)
	g.Eventually(func(g Gomega) { fleetCluster(g, first, one) }).Should(Succeed())
	g.Expect(create()).To(isRefused)
	g.Expect(admin.Create(ctx, fixture.Cluster(second, other+"-2", "standard", second))).To(Succeed(), "the name in the message should do")

	start := stop(t, g, webhookProcess)
	g.Expect(create()).To(Succeed())
	start()
	rival := get(g, &clusterv1.Cluster{}, second, other)
	initialize(g, rival)
	isKeptOut := func(g Gomega) {
		condition := conditions.Get(get(g, &clusterv1.Cluster{}, second, other), sync.ImportedCondition)
		g.Expect(condition).NotTo(BeNil())
		g.Expect(fmt.Sprintf("%s %s", condition.Status, condition.Reason)).To(Equal("False NameConflict"))
		g.Expect(condition.Message).To(And(ContainSubstring(shared), ContainSubstring(other+"-2")))
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: second, Name: other}, &fleetv1.Cluster{})).To(Satisfy(apierrors.IsNotFound))
	}
	g.Eventually(isKeptOut).Should(Succeed())

	// As long as Fleet has not removed the namespace, what is deployed there is the first one's.
	namespace := &corev1.Namespace{}
	namespace.Name = shared
	namespace.Annotations = map[string]string{fleetv1.ClusterNamespaceAnnotation: first, fleetv1.ClusterAnnotation: one}
	g.Expect(admin.Create(ctx, namespace)).To(Succeed())
	g.Expect(admin.Delete(ctx, rightful)).To(Succeed())
	g.Eventually(func() error {
		return admin.Get(ctx, client.ObjectKey{Namespace: first, Name: one}, &fleetv1.Cluster{})
	}).Should(Satisfy(apierrors.IsNotFound))
	g.Consistently(isKeptOut).Should(Succeed())
	g.Expect(admin.Delete(ctx, namespace)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, second, other).Annotations).To(HaveKeyWithValue(stamp.ImportedFromAnnotation, other))
		g.Expect(conditions.IsTrue(get(g, &clusterv1.Cluster{}, second, other), sync.ImportedCondition)).To(BeTrue())
	}).Should(Succeed())
}
