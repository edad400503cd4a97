package integration

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/test/fixture"
)

// Pull secrets of the agent go to Fleet Clusters where the served CRD has the field. With the CRD of Fleet 0.15, the Cluster is
// imported without them, and the FleetAddonConfig says what is needed; an upgrade of Fleet is enough then.
func TestAgentPullSecrets(t *testing.T) {
	needsFleet016(t)
	g := NewWithT(t)
	ownStack(t, g)
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(references.CRD().GroupVersionKind())
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: "clusters.fleet.cattle.io"}, crd)).To(Succeed())
	const field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/agentPullSecrets"
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	g.Expect(err).NotTo(HaveOccurred())
	schema, found, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "agentPullSecrets")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
	change := func(operations ...map[string]any) {
		t.Helper()
		body, err := json.Marshal(operations)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(admin.Patch(ctx, crd.DeepCopy(), client.RawPatch(types.JSONPatchType, body))).To(Succeed())
	}
	change(map[string]any{"op": "remove", "path": field})

	_, err = apply(t, configYAML(`{cluster: {agentPullSecrets: [{name: access}]}}`))
	g.Expect(err).NotTo(HaveOccurred())
	valid := func(g Gomega) *metav1.Condition {
		config := get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName)
		g.Expect(config.Status.ObservedGeneration).To(Equal(config.Generation))
		return meta.FindStatusCondition(config.Status.Conditions, "ConfigValid")
	}
	s := newScene(t, g)
	s.imported(g, "one")
	g.Eventually(valid).Should(And(HaveField("Status", metav1.ConditionFalse),
		HaveField("Message", And(ContainSubstring("spec.cluster.agentPullSecrets has no effect"), ContainSubstring("install Fleet 0.16 or newer")))))
	g.Expect(fleetCluster(g, s.namespace, "one").Spec.AgentPullSecrets).To(BeNil())

	change(map[string]any{"op": "add", "path": field, "value": schema})
	has := func(want ...string) {
		t.Helper()
		names := []corev1.LocalObjectReference{}
		for _, name := range want {
			names = append(names, corev1.LocalObjectReference{Name: name})
		}
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, s.namespace, "one").Spec.AgentPullSecrets).To(HaveValue(Equal(names)))
		}).Should(Succeed())
	}
	has("access")
	g.Eventually(valid).Should(HaveField("Status", metav1.ConditionTrue))
	patch(g, fixture.Config(), `{"spec":{"cluster":{"agentPullSecrets":[{"name":"one"},{"name":"two"}]}}}`)
	has("one", "two")
	patch(g, fleetCluster(g, s.namespace, "one"), `{"spec":{"agentPullSecrets":[{"name":"by-others"}]}}`)
	has("one", "two")
	patch(g, fixture.Config(), `{"spec":{"cluster":{"agentPullSecrets":[]}}}`)
	has()
	patch(g, fixture.Config(), `{"spec":{"cluster":{"agentPullSecrets":null}}}`)
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").Spec.AgentPullSecrets).To(BeNil()) }).Should(Succeed())
}
