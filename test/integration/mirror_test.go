package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// fleetSays plays Fleet: it reports on the bundles of a cluster whose agent was seen last so
// long ago.
func fleetSays(g Gomega, cluster *clusterv1.Cluster, ready corev1.ConditionStatus, message string, ago time.Duration) {
	fleet := fleetCluster(g, cluster.Namespace, cluster.Name)
	before := fleet.DeepCopy()
	fleet.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: ready, Message: message}}
	fleet.Status.Agent.LastSeen = metav1.NewTime(time.Now().Add(-ago))
	g.Expect(admin.Status().Patch(ctx, fleet, client.MergeFrom(before))).To(Succeed())
}

func bundlesCondition(g Gomega, cluster *clusterv1.Cluster) *metav1.Condition {
	condition := conditions.Get(get(g, &clusterv1.Cluster{}, cluster.Namespace, cluster.Name), "FleetBundlesReady")
	g.Expect(condition).NotTo(BeNil())
	return condition
}

// FleetBundlesReady says what Fleet says in every state in which a Cluster has a Fleet Cluster,
// and FleetImported stays true.
func TestBundlesReadyInEveryState(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	provoked[s.namespace] = true
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "out", Operator: metav1.LabelSelectorOpDoesNotExist}}},
	}})
	cluster := s.imported(g, "one")
	patch := func(body string) {
		g.Expect(admin.Patch(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "one"}}, mergePatch(body))).To(Succeed())
	}
	configure := func(body string) {
		g.Expect(admin.Patch(ctx, fixture.Config(), mergePatch(body))).To(Succeed())
	}
	for _, state := range []struct {
		name, reason string
		begin, end   func()
	}{
		{"imported", "Imported", func() {}, func() {}},
		{"deselected", "Deselected", func() { patch(`{"metadata":{"labels":{"out":"x"}}}`) }, func() { patch(`{"metadata":{"labels":{"out":null}}}`) }},
		{"paused", "Paused", func() { patch(`{"metadata":{"annotations":{"cluster.x-k8s.io/paused":""}}}`) }, func() { patch(`{"metadata":{"annotations":{"cluster.x-k8s.io/paused":null}}}`) }},
		{"displaced", "NameConflict", func() { newClass(g, s.namespace, "standard."+s.classNamespace, nil) }, func() {
			deleteNow(g, fixture.Class(s.namespace, "standard."+s.classNamespace, nil))
		}},
		{"failed", "Failed", func() {
			denySyncer(t, g, s.namespace, "clusters")
			patch(`{"metadata":{"labels":{"changed":"x"}}}`)
		}, func() { allowSyncer(g) }},
		{"import is off", "Imported", func() { configure(`{"spec":{"cluster":{"enabled":false}}}`) }, func() { configure(`{"spec":{"cluster":{"enabled":true}}}`) }},
		{"the config does not parse", "Imported", func() {
			withoutValidation(t, g)
			configure(`{"spec":{"cluster":{"selector":{"matchLabels":{"a":"b c"}}}}}`)
		}, func() { configure(`{"spec":{"cluster":{"selector":{"matchLabels":null}}}}`) }},
	} {
		t.Run(state.name, func(t *testing.T) {
			g := NewWithT(t)
			fleetSays(g, cluster, corev1.ConditionTrue, "", 0)
			g.Eventually(func(g Gomega) {
				g.Expect(bundlesCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue))
				g.Expect(importedReason(g, cluster)).To(Equal("Imported"))
			}).Should(Succeed())
			state.begin()
			g.Eventually(func(g Gomega) { g.Expect(importedReason(g, cluster)).To(Equal(state.reason)) }).Should(Succeed())
			version := fleetCluster(g, s.namespace, "one").Generation

			fleetSays(g, cluster, corev1.ConditionFalse, "NotReady(1) in "+state.name, 0)
			g.Eventually(func(g Gomega) {
				told := bundlesCondition(g, cluster)
				g.Expect(told.Status).To(Equal(metav1.ConditionFalse))
				g.Expect(told.Message).To(Equal("NotReady(1) in " + state.name))
				g.Expect(importedCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue))
				g.Expect(importedReason(g, cluster)).To(Equal(state.reason))
			}).Should(Succeed())
			fleetSays(g, cluster, corev1.ConditionTrue, "", time.Hour)
			g.Eventually(func(g Gomega) {
				told := bundlesCondition(g, cluster)
				g.Expect(told.Status).To(Equal(metav1.ConditionUnknown))
				g.Expect(told.Reason).To(Equal("AgentStale"))
			}).Should(Succeed())
			g.Expect(fleetCluster(g, s.namespace, "one").Generation).To(Equal(version), "Fleet was written to")
			state.end()
		})
	}

	// A Cluster whose Fleet Cluster is gone has nothing to mirror.
	configure(`{"spec":{"cluster":{"enabled":false}}}`)
	g.Eventually(func(g Gomega) {
		config := get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName)
		g.Expect(config.Status.ObservedGeneration).To(Equal(config.Generation))
	}).Should(Succeed())
	g.Expect(admin.Delete(ctx, fleetCluster(g, s.namespace, "one"))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(conditions.Get(get(g, &clusterv1.Cluster{}, s.namespace, "one"), "FleetBundlesReady")).To(BeNil())
	}).Should(Succeed())
}

// An agent that falls silent makes the condition Unknown by the clock, and a call makes it what
// Fleet says. Heartbeats in between cost nothing.
func TestSilentAgent(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	cluster := s.imported(g, "one")
	fleetSays(g, cluster, corev1.ConditionTrue, "", 20*time.Minute)
	g.Eventually(func(g Gomega) { g.Expect(bundlesCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue)) }).Should(Succeed())
	quiet(g)
	since := time.Now()
	for ago := 10; ago > 0; ago-- {
		fleetSays(g, cluster, corev1.ConditionTrue, "", time.Duration(ago)*time.Minute)
	}
	quiet(g)
	g.Expect(requests(g, since, nil)).To(BeEmpty(), "heartbeats cost requests")

	// It called last as long ago as allowed, all but a few seconds. The change of the message arms the clock.
	fleetSays(g, cluster, corev1.ConditionTrue, "soon", stamp.DefaultStaleAfter-5*time.Second)
	g.Eventually(func(g Gomega) {
		told := bundlesCondition(g, cluster)
		g.Expect(told.Status).To(Equal(metav1.ConditionUnknown))
		g.Expect(told.Reason).To(Equal("AgentStale"))
		g.Expect(told.Message).To(ContainSubstring("has not reported for more than"))
		g.Expect(importedCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue))
	}).Should(Succeed())
	quiet(g)
	g.Expect(requests(g, since, isWrite)).To(HaveLen(2), "one for the message, and one says that it is silent")

	fleetSays(g, cluster, corev1.ConditionTrue, "soon", 0)
	g.Eventually(func(g Gomega) { g.Expect(bundlesCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue)) }).Should(Succeed())
}

// denySyncer installs a policy that denies the syncer's changes to one of Fleet's resources in a
// namespace.
func denySyncer(t *testing.T, g Gomega, namespace, resource string) {
	t.Helper()
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: test-deny-syncer}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [fleet.cattle.io], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [%s]}
  matchConditions:
  - {name: syncer, expression: "request.userInfo.username == 'system:serviceaccount:muster-system:muster-syncer' && request.namespace == '%s'"}
  validations:
  - {expression: "false", message: not today}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: test-deny-syncer}
spec: {policyName: test-deny-syncer, validationActions: [Deny]}
`, resource, namespace))).To(Succeed())
	t.Cleanup(func() { allowSyncer(NewWithT(t)) })
	syncer := thief(g)
	g.Eventually(func(g Gomega) {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind(map[string]string{"clusters": "Cluster", "bundles": "Bundle"}[resource]))
		object.Namespace, object.Name = namespace, map[string]string{"clusters": "one", "bundles": "app"}[resource]
		g.Expect(syncer.Patch(ctx, object, mergePatch(`{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/retarget":"probe"}}}`), client.DryRunAll)).
			To(MatchError(ContainSubstring("not today")))
	}).Should(Succeed())
}

func allowSyncer(g Gomega) {
	_, err := env.Kubectl(ctx, "delete", "--ignore-not-found", "validatingadmissionpolicybinding,validatingadmissionpolicy", "test-deny-syncer")
	g.Expect(err).NotTo(HaveOccurred())
}

// withoutValidation takes the validating webhooks away until the test ends.
func withoutValidation(t *testing.T, g Gomega) {
	t.Helper()
	var all admissionregistrationv1.ValidatingWebhookConfigurationList
	g.Expect(admin.List(ctx, &all)).To(Succeed())
	for _, configuration := range all.Items {
		if configuration.Name != "muster-validating-webhook" {
			continue
		}
		// The API server takes a moment to notice.
		validates := func(matcher gomegatypes.GomegaMatcher) {
			g.Eventually(func() error {
				return admin.Patch(ctx, fixture.Config(), mergePatch(`{"spec":{"cluster":{"selector":{"matchLabels":{"a":"b c"}}}}}`), client.DryRunAll)
			}).Should(matcher)
		}
		g.Expect(admin.Delete(ctx, configuration.DeepCopy())).To(Succeed())
		t.Cleanup(func() {
			configuration.ResourceVersion, configuration.UID = "", ""
			g.Expect(admin.Create(ctx, &configuration)).To(Succeed())
			validates(MatchError(ContainSubstring("a valid label must be")))
		})
		validates(Succeed())
		return
	}
	t.Fatal("the webhook configuration has another name")
}

// FleetImported names a group or mapping that another user made under the needed name. The
// Cluster is imported, and adopting the object ends the conflict.
func TestForeignTarget(t *testing.T) {
	for name, test := range map[string]struct {
		kind   string
		object func(scene) client.Object
	}{
		"ClusterGroup":           {"ClusterGroup", func(s scene) client.Object { return s.group() }},
		"BundleNamespaceMapping": {"BundleNamespaceMapping", func(s scene) client.Object { return s.mapping() }},
		"the class's own group": {"ClusterGroup", func(s scene) client.Object {
			return &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "own"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			noConfig(t)
			foreign := test.object(s)
			g.Expect(admin.Create(ctx, foreign, client.FieldOwner("somebody"))).To(Succeed())
			class, classNamespace := "standard", s.classNamespace
			if name == "the class's own group" {
				newClass(g, s.namespace, "own", nil)
				class, classNamespace = "own", s.namespace
			}
			cluster := fixture.Cluster(s.namespace, "one", class, classNamespace)
			g.Expect(admin.Create(ctx, cluster)).To(Succeed())
			initialize(g, cluster)
			g.Eventually(func(g Gomega) {
				fleetCluster(g, s.namespace, "one")
				told := importedCondition(g, cluster)
				g.Expect(told.Status).To(Equal(metav1.ConditionTrue))
				g.Expect(told.Reason).To(Equal("NameConflict"))
				g.Expect(told.Message).To(And(ContainSubstring(test.kind+" "+client.ObjectKeyFromObject(foreign).String()), ContainSubstring("somebody"),
					ContainSubstring("fleet.addons.cluster.x-k8s.io/adopt=true")))
			}).Should(Succeed())

			g.Expect(admin.Patch(ctx, foreign, mergePatch(`{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/adopt":"true"}}}`))).To(Succeed())
			g.Eventually(func(g Gomega) {
				g.Expect(importedReason(g, cluster)).To(Equal("Imported"))
				adopted := test.object(s)
				exists(g, adopted)
				g.Expect(adopted.GetUID()).To(Equal(foreign.GetUID()))
				g.Expect(adopted.GetLabels()).To(HaveKeyWithValue("app.kubernetes.io/managed-by", "muster"))
			}).Should(Succeed())
		})
	}
}

// A deselected Cluster whose pin was dropped while the webhook was down gets it back, as long as
// its Fleet Cluster is there.
func TestDeselectedPinComesBack(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"import": "yes"}}}})
	cluster := fixture.Cluster(s.namespace, "one", "standard", s.classNamespace)
	cluster.Labels = map[string]string{"import": "yes"}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "one") }).Should(Succeed())
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"metadata":{"labels":{"import":"no"}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedReason(g, cluster)).To(Equal("Deselected")) }).Should(Succeed())

	restart := stop(t, g, webhookProcess)
	defer restart()
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/owned-by":null,"fleet.addons.cluster.x-k8s.io/cluster-name":null}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		annotations := get(g, &clusterv1.Cluster{}, s.namespace, "one").Annotations
		g.Expect(annotations).To(HaveKeyWithValue("fleet.addons.cluster.x-k8s.io/owned-by", "fleet-addon-config"))
		g.Expect(annotations).To(HaveKeyWithValue("fleet.addons.cluster.x-k8s.io/cluster-name", "one"))
	}).Should(Succeed())
}

// To the management side before the control plane exists: Fleet would look for the kubeconfig in
// vain, and then for minutes not at all.
func TestTurnedBeforeTheControlPlane(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "team", nil)
	noConfig(t)
	cluster := plainCluster(g, namespace, "edge", map[string]string{"fleet.addons.cluster.x-k8s.io/registration": "agent"})
	var clientID string
	g.Eventually(func(g Gomega) {
		clientID = fleetCluster(g, namespace, "edge").Spec.ClientID
		g.Expect(clientID).NotTo(BeEmpty())
	}).Should(Succeed())
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"metadata":{"labels":{"a":"b"},"annotations":{"fleet.addons.cluster.x-k8s.io/registration":"manager"}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, namespace, "edge").Labels).To(HaveKey("a"))
		told := importedCondition(g, cluster)
		g.Expect(told.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(told.Reason).To(Equal("WaitingForControlPlane"))
	}).Should(Succeed())
	fleet := fleetCluster(g, namespace, "edge")
	g.Expect(fleet.Spec.KubeConfigSecret).To(BeEmpty())
	g.Expect(fleet.Spec.ClientID).To(Equal(clientID))

	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, namespace, "edge").Spec.KubeConfigSecret).To(Equal("edge-kubeconfig"))
		g.Expect(importedReason(g, cluster)).To(Equal("Imported"))
	}).Should(Succeed())
}

// The agent of a Cluster that calls by itself stays where its credential is.
func TestAgentNamespaceOfOneThatCalls(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "team", nil)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{})
	cluster := plainCluster(g, namespace, "edge", map[string]string{"fleet.addons.cluster.x-k8s.io/registration": "agent"})
	g.Eventually(func(g Gomega) { fleetCluster(g, namespace, "edge") }).Should(Succeed())
	fleet := fleetCluster(g, namespace, "edge")
	before := fleet.DeepCopy()
	fleet.Status.Agent = fleetv1.AgentStatus{LastSeen: metav1.Now(), Namespace: "fleet-addon-agent"}
	g.Expect(admin.Status().Patch(ctx, fleet, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedReason(g, cluster)).To(Equal("Imported")) }).Should(Succeed())

	g.Expect(warnedBy(g, "", "patch", "fleetaddonconfig", "fleet-addon-config", "--type=merge", "-p", `{"spec":{"cluster":{"agentNamespace":"elsewhere","hostNetwork":false}}}`)).
		To(MatchRegexp(`the agents of [1-9][0-9]* Clusters call by themselves`))
	g.Eventually(func(g Gomega) {
		spec := fleetCluster(g, namespace, "edge").Spec
		g.Expect(*spec.HostNetwork).To(BeFalse())
		g.Expect(spec.AgentNamespace).To(Equal("fleet-addon-agent"))
		g.Expect(importedCondition(g, cluster).Message).To(ContainSubstring(`its agent stays in namespace "fleet-addon-agent" instead of "elsewhere" (spec.cluster.agentNamespace)`))
	}).Should(Succeed())
}
