package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/kube/references"
)

// policySays returns the message of a HelmReleaseProxy about a Policy that refuses it, empty for none, and expects its
// HelmChartProxy not to be Ready over it.
func (c contest) policySays(of *addonsv1.HelmChartProxy) func(Gomega) string {
	return func(g Gomega) string {
		var all addonsv1.HelmReleaseProxyList
		g.Expect(admin.List(ctx, &all, client.InNamespace(of.Namespace), client.MatchingLabels{addonsv1.HelmChartProxyLabel: of.Name})).To(Succeed())
		g.Expect(all.Items).To(HaveLen(1))
		condition := meta.FindStatusCondition(all.Items[0].Status.Conditions, addonsv1.ReadyCondition)
		g.Expect(condition).NotTo(BeNil())
		if condition.Reason != addonsv1.PolicyRefusesReason {
			return ""
		}
		ready := meta.FindStatusCondition(get(g, &addonsv1.HelmChartProxy{}, of.Namespace, of.Name).Status.Conditions, addonsv1.ReadyCondition)
		g.Expect(ready).To(HaveField("Status", metav1.ConditionFalse))
		if !c.hasTarget(g, of) { // Otherwise it says that Fleet, which does not run, has yet to take the Bundle over.
			g.Expect(ready).To(And(HaveField("Reason", addonsv1.PolicyRefusesReason), HaveField("Message", ContainSubstring(condition.Message))))
		}
		return condition.Message
	}
}

// A Policy that requires a ServiceAccount, or does not allow it: HelmChartProxy and HelmReleaseProxy say so and what to do, no
// Bundle is made, and one that is there stays as it is. With the ServiceAccount, or without the Policy, it goes on. The shipped
// rights suffice.
func TestPolicyRefuses(t *testing.T) {
	needsFleet016(t)
	g := NewWithT(t)
	c := newContest(t, g, "old", "new")
	old := c.asks(g, c.namespace, "old")
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, old)).To(BeTrue()) }).WithTimeout(helmPatience).Should(Succeed())

	policy := named(&fleetv1.Policy{}, c.namespace, "tenants")
	policy.RequireServiceAccount, policy.AllowedServiceAccounts = true, []string{"deployer"}
	create(g, policy)
	required := And(HavePrefix("a Policy of Fleet in namespace "+c.namespace+" requires a ServiceAccount"), ContainSubstring("set spec.serviceAccount of the HelmChartProxy to one that is allowed: deployer"))
	g.Eventually(c.policySays(old)).WithTimeout(helmPatience).Should(required)
	before := c.bundle(g, old)

	other := c.proxy(c.namespace, "new")
	other.Spec.ReleaseName = "other"
	create(g, other)
	g.Eventually(c.policySays(other)).WithTimeout(helmPatience).Should(required)
	patch(g, old, `{"spec":{"correctDrift":true,"valuesTemplate":"owner: nobody"}}`)
	g.Consistently(func(g Gomega) {
		g.Expect(c.bundle(g, other)).To(BeNil())
		g.Expect(c.bundle(g, old)).To(HaveField("ResourceVersion", before.ResourceVersion))
	}).Should(Succeed())

	g.Expect(admin.Patch(ctx, other, mergePatch(`{"spec":{"serviceAccount":"No name"}}`))).To(MatchError(ContainSubstring("spec.serviceAccount")))
	patch(g, other, `{"spec":{"serviceAccount":"admin"}}`)
	g.Eventually(c.policySays(other)).WithTimeout(helmPatience).Should(HavePrefix("no Policy of Fleet in namespace " + c.namespace + " allows ServiceAccount admin"))
	patch(g, other, `{"spec":{"serviceAccount":"deployer"}}`)
	g.Eventually(func(g Gomega) {
		g.Expect(c.policySays(other)(g)).To(BeEmpty())
		g.Expect(c.hasTarget(g, other)).To(BeTrue())
		g.Expect(c.bundle(g, other).Spec.ServiceAccount).To(Equal("deployer"))
	}).WithTimeout(helmPatience).Should(Succeed())

	// Fleet would look at no target of a refused Bundle that goes, so the Bundle goes.
	patch(g, c.cluster, entry("labels", "old", "null"))
	g.Eventually(func(g Gomega) { g.Expect(c.bundle(g, old)).To(BeNil()) }).WithTimeout(helmPatience).Should(Succeed())
	patch(g, c.cluster, entry("labels", "old", `"yes"`))
	g.Eventually(c.policySays(old)).WithTimeout(helmPatience).Should(required)

	g.Expect(admin.Delete(ctx, policy)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(c.policySays(old)(g)).To(BeEmpty())
		g.Expect(c.hasTarget(g, old)).To(BeTrue())
		g.Expect(c.bundle(g, old).Spec.CorrectDrift).NotTo(BeNil())
	}).WithTimeout(helmPatience).Should(Succeed())
}

// Fleet before 0.16 has no Policies. Nothing is watched then, and nothing changes; when the kind comes, it counts.
func TestPoliciesOfNewerFleet(t *testing.T) {
	needsFleet016(t)
	g := NewWithT(t)
	ownStack(t, g)
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(references.CRD().GroupVersionKind())
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: fleetpolicy.CRD}, crd)).To(Succeed())
	g.Expect(admin.Delete(ctx, crd)).To(Succeed())
	c := newContest(t, g, "one")
	of := c.asks(g, c.namespace, "one")
	g.Eventually(func(g Gomega) { g.Expect(c.hasTarget(g, of)).To(BeTrue()) }).WithTimeout(helmPatience).Should(Succeed())
	g.Expect(env.LogTail("muster-helm")).NotTo(ContainSubstring("Policy"))

	newer := &unstructured.Unstructured{Object: map[string]any{"spec": crd.Object["spec"]}}
	newer.SetGroupVersionKind(crd.GroupVersionKind())
	newer.SetName(crd.GetName())
	g.Expect(admin.Create(ctx, newer)).To(Succeed())
	policy := named(&fleetv1.Policy{}, c.namespace, "tenants")
	policy.RequireServiceAccount = true
	g.Eventually(func() error { return admin.Create(ctx, policy.DeepCopy()) }).Should(Succeed())
	g.Eventually(c.policySays(of)).WithTimeout(helmPatience).Should(ContainSubstring("requires a ServiceAccount"))
	g.Expect(admin.Delete(ctx, newer)).To(Succeed())
	g.Eventually(c.policySays(of)).WithTimeout(helmPatience).Should(BeEmpty())
}
