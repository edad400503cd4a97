package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// mutate lets a policy of somebody else change what the syncer writes to these resources,
// as a mutating webhook would, until the test ends. It returns when the policy is in
// force: when sees succeeds with the syncer's token.
func mutate(t *testing.T, g Gomega, groups, resources, mutation string, sees func(Gomega, client.Client)) {
	t.Helper()
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: test-somebody-elses}
spec:
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules:
    - {apiGroups: [%s], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [%s]}
  matchConditions:
  - {name: syncer, expression: "request.userInfo.username == 'system:serviceaccount:muster-system:muster-syncer'"}
  mutations:
%s
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: test-somebody-elses}
spec: {policyName: test-somebody-elses}
`, groups, resources, mutation))).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "--ignore-not-found", "mutatingadmissionpolicy,mutatingadmissionpolicybinding", "test-somebody-elses"); err != nil {
			t.Error(err)
		}
	})
	syncer := thief(g)
	g.Eventually(func(g Gomega) { sees(g, syncer) }).Should(Succeed())
}

// probe stamps a Cluster with the syncer's token, without effect.
func probe(g Gomega, syncer client.Client, of *clusterv1.Cluster) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}}
	g.Expect(syncer.Patch(ctx, cluster, mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, stamp.ClusterNameAnnotation)), client.DryRunAll)).To(Succeed())
	return cluster
}

// unstamped creates a Cluster that waits for the syncer to stamp it, and returns how to
// start the syncer. The webhook is down until the test ends.
func (s scene) unstamped(t *testing.T, g Gomega, cluster *clusterv1.Cluster) (start func()) {
	t.Helper()
	start = stop(t, g, syncerProcess)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	stop(t, g, webhookProcess)
	g.Expect(admin.Patch(ctx, cluster, mergePatch(fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:null},"annotations":{%q:null,%q:null}}}`,
		stamp.ClassNameLabel, stamp.ClassNamespaceLabel, stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation)))).To(Succeed())
	initialize(g, cluster)
	return start
}

const cost = "example.com/cost"

// Where somebody else's webhook puts a label on everything, the syncer's own policies see
// that label in the syncer's requests. They let it pass: stamping, importing, releasing
// and retiring go on, and there is no tug of war.
func TestOthersLabelEverything(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := fixture.Cluster(s.namespace, "one", "standard", s.classNamespace)
	start := s.unstamped(t, g, cluster)
	g.Expect(admin.Patch(ctx, s.class, mergePatch(fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, stamp.LegacyFinalizer)))).To(Succeed())
	bundle := object(g, fmt.Sprintf(`{"apiVersion":%q,"kind":"Bundle","metadata":{"namespace":%q,"name":"bundle"},"spec":{"resources":[]}}`, fleetVersion, s.classNamespace))
	g.Expect(admin.Create(ctx, bundle)).To(Succeed())
	deployment := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: newNamespace(t, g, "cluster", nil), Name: "bundle", Labels: map[string]string{
		fleetv1.BundleLabel: "bundle", fleetv1.BundleNamespaceLabel: s.classNamespace, fleetv1.ClusterLabel: "one", fleetv1.ClusterNamespaceLabel: s.namespace,
	}}}
	g.Expect(admin.Create(ctx, deployment)).To(Succeed())
	mutate(t, g, `"", fleet.cattle.io, cluster.x-k8s.io, addons.cluster.x-k8s.io, events.k8s.io, coordination.k8s.io`, `"*"`, fmt.Sprintf(`
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{metadata: Object.metadata{labels: {%[1]q: "team"}, annotations: {%[1]q: "team"}}}
`, cost), func(g Gomega, syncer client.Client) {
		g.Expect(probe(g, syncer, cluster).Labels).To(HaveKeyWithValue(cost, "team"))
	})
	marked := func(g Gomega, objects ...client.Object) {
		for _, object := range objects {
			exists(g, object)
			g.Expect(object.GetLabels()).To(HaveKeyWithValue(cost, "team"), "%T", object)
		}
	}
	begin := time.Now()
	start()

	g.Eventually(func(g Gomega) {
		g.Expect(importedCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue), importedCondition(g, cluster).Message)
		stamped := get(g, &clusterv1.Cluster{}, s.namespace, "one")
		g.Expect(stamped.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
		fleet := fleetCluster(g, s.namespace, "one")
		namespace := get(g, &corev1.Namespace{}, "", s.namespace)
		g.Expect(namespace.Annotations).To(HaveKey("field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"))
		class := get(g, &clusterv1.ClusterClass{}, s.classNamespace, "standard")
		g.Expect(class.Finalizers).To(BeEmpty())
		marked(g, stamped, fleet, namespace, class, s.group(), s.mapping())
	}).Should(Succeed())

	syncer := stack.ServiceAccount("muster-system", "muster-syncer")
	writes := func(g Gomega, since time.Time, of func(stack.AuditEvent) bool) []stack.AuditEvent {
		found, err := env.AuditLog(stack.AuditFilter{User: syncer, Since: since, Where: func(e stack.AuditEvent) bool {
			return e.UserAgent != thiefAgent && of(e)
		}})
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	settled := time.Now()
	g.Consistently(func(g Gomega) {
		g.Expect(writes(g, settled.Add(time.Second), func(e stack.AuditEvent) bool {
			return (e.Verb == "patch" || e.Verb == "create") && e.Namespace == s.namespace
		})).To(BeEmpty())
	}, 4*time.Second).Should(Succeed())

	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(BeEmpty()) }).Should(Succeed())
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"spec":{"paused":null}}`))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).NotTo(BeEmpty()) }).Should(Succeed())

	g.Expect(admin.Delete(ctx, cluster)).To(Succeed())
	g.Eventually(func(g Gomega) {
		exists(g, bundle)
		g.Expect(bundle.GetAnnotations()).To(HaveKey("fleet.addons.cluster.x-k8s.io/retarget"))
		marked(g, bundle)
	}).Should(Succeed())
	g.Expect(admin.Delete(ctx, deployment)).To(Succeed())
	g.Eventually(func(g Gomega) {
		isGone(g, s.mapping())
		isGone(g, s.group())
	}).Should(Succeed())

	g.Expect(writes(g, begin, func(e stack.AuditEvent) bool { return e.Code == 403 })).To(BeEmpty())
}

// A class got new variables since a Cluster was written: whoever writes it next, Cluster
// API's webhook fills in their defaults, wherever variables may be.
func TestOthersFillInVariables(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := fixture.Cluster(s.namespace, "one", "standard", s.classNamespace)
	start := s.unstamped(t, g, cluster)
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"spec":{"topology":{
		"variables":[{"name":"disks","value":{"root":{"size":1}}}],
		"controlPlane":{"replicas":1,"variables":{"overrides":[{"name":"disks","value":{"root":{"size":2}}}]}},
		"workers":{"machineDeployments":[{"class":"default","name":"md","variables":{"overrides":[{"name":"disks","value":{"root":{"size":3}}}]}}],
			"machinePools":[{"class":"default","name":"mp"}]}
	}}}`))).To(Succeed())
	mutate(t, g, "cluster.x-k8s.io", "clusters", `
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        object.spec.topology.controlPlane.variables.overrides.exists(v, v.name == "added") ? [] : [
          JSONPatch{op: "add", path: "/spec/topology/variables/-", value: {"name": dyn("added"), "value": dyn(1)}},
          JSONPatch{op: "add", path: "/spec/topology/variables/0/value/root/kind", value: "ssd"},
          JSONPatch{op: "add", path: "/spec/topology/controlPlane/variables/overrides/-", value: {"name": dyn("added"), "value": dyn(1)}},
          JSONPatch{op: "add", path: "/spec/topology/controlPlane/variables/overrides/0/value/root/kind", value: "ssd"},
          JSONPatch{op: "add", path: "/spec/topology/workers/machineDeployments/0/variables/overrides/0/value/root/kind", value: "ssd"},
          JSONPatch{op: "add", path: "/spec/topology/workers/machinePools/0/variables", value: {"overrides": [{"name": dyn("added"), "value": dyn(1)}]}}
        ]
`, func(g Gomega, syncer client.Client) {
		g.Expect(probe(g, syncer, cluster).Spec.Topology.Variables).To(HaveLen(2))
	})
	begin := time.Now()
	start()
	g.Eventually(func(g Gomega) {
		g.Expect(importedCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue), importedCondition(g, cluster).Message)
		stamped := get(g, &clusterv1.Cluster{}, s.namespace, "one")
		g.Expect(stamped.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
		g.Expect(stamped.Spec.Topology.ControlPlane.Variables.Overrides).To(HaveLen(2))
		g.Expect(stamped.Spec.Topology.Workers.MachinePools[0].Variables.Overrides).To(HaveLen(1))
	}).Should(Succeed())
	refused, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-syncer"), Since: begin,
		Where: func(e stack.AuditEvent) bool { return e.Code == 403 }})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(refused).To(BeEmpty())
}

// provoked are the namespaces in which the syncer was refused on purpose.
var provoked = map[string]bool{}

// What somebody's webhook changes in the syncer's request is refused like a change of the
// syncer's. The condition names it, so that people know whose webhook to look at.
func TestOthersChangeIsNamed(t *testing.T) {
	for name, test := range map[string]struct{ mutation, named string }{
		"a label is changed":      {`Object{metadata: Object.metadata{labels: {"team": "b"}}}`, "labels and annotations of a Cluster: team"},
		"a reserved one is added": {`Object{metadata: Object.metadata{annotations: {"cluster.x-k8s.io/paused": ""}}}`, "cluster.x-k8s.io/paused"},
		"the version is changed":  {`Object{spec: Object.spec{topology: Object.spec.topology{version: "v1.99.0"}}}`, "spec.topology.version"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			provoked[s.namespace] = true
			cluster := fixture.Cluster(s.namespace, "one", "standard", s.classNamespace)
			cluster.Labels = map[string]string{"team": "a"}
			start := s.unstamped(t, g, cluster)
			mutate(t, g, "cluster.x-k8s.io", "clusters", `
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        `+test.mutation, func(g Gomega, syncer client.Client) {
				patched := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "one"}}
				g.Expect(syncer.Patch(ctx, patched, mergePatch(`{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/cluster-name":"x"}}}`), client.DryRunAll)).
					To(MatchError(ContainSubstring(test.named)))
			})
			start()
			g.Eventually(func(g Gomega) {
				condition := importedCondition(g, cluster)
				g.Expect(condition.Reason).To(Equal("Failed"))
				g.Expect(condition.Message).To(And(ContainSubstring("muster-syncer-clusters"), ContainSubstring(test.named)))
			}).Should(Succeed())
			_, err := env.Kubectl(ctx, "delete", "mutatingadmissionpolicybinding", "test-somebody-elses")
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func(g Gomega) {
				g.Expect(importedCondition(g, cluster).Status).To(Equal(metav1.ConditionTrue))
			}).Should(Succeed())
		})
	}
}

// What a policy may cost is limited. The fence stays below that for the largest Clusters.
func TestFenceOfALargeCluster(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := fixture.Cluster(s.namespace, "large", "standard", s.classNamespace)
	value := func(text string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(text)} }
	variables := func(from, to int) (result []clusterv1.ClusterVariable) {
		for i := from; i < to; i++ {
			result = append(result, clusterv1.ClusterVariable{Name: fmt.Sprintf("variable-%d", i), Value: value(`{"a":{"b":{"c":1}},"text":"some text of some length"}`)})
		}
		return result
	}
	cluster.Spec.Topology.Variables = variables(0, 50)
	for i := range 100 {
		cluster.Spec.Topology.Workers.MachineDeployments = append(cluster.Spec.Topology.Workers.MachineDeployments,
			clusterv1.MachineDeploymentTopology{Name: fmt.Sprintf("pool-%d", i), Class: "default",
				Variables: clusterv1.MachineDeploymentVariables{Overrides: variables(0, 10)}})
	}
	cluster.Labels, cluster.Annotations = map[string]string{}, map[string]string{}
	for i := range 100 {
		cluster.Labels[fmt.Sprintf("label-%d", i)], cluster.Annotations[fmt.Sprintf("annotation-%d", i)] = "x", "x"
	}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	t.Cleanup(func() { deleteNow(NewWithT(t), cluster) }) // Others count those that wait.
	syncer := thief(g)
	probe(g, syncer, cluster)
	for who, writer := range map[string]client.Client{"unbounded": admin, "bounded": syncer} {
		begin := time.Now()
		probe(g, writer, cluster)
		t.Logf("%s, nothing differs: %s", who, time.Since(begin))
	}

	t.Run("to which a default is added everywhere", func(t *testing.T) {
		g := NewWithT(t)
		current := get(g, &clusterv1.Cluster{}, s.namespace, "large")
		before := current.DeepCopy()
		for i := range current.Spec.Topology.Workers.MachineDeployments {
			overrides := current.Spec.Topology.Workers.MachineDeployments[i].Variables.Overrides
			overrides[0].Value = value(`{"a":{"b":{"c":1,"new":1}},"text":"some text of some length"}`)
		}
		begin := time.Now()
		g.Expect(syncer.Patch(ctx, current, client.MergeFrom(before), client.DryRunAll)).To(Succeed())
		t.Logf("everything differs: %s", time.Since(begin))
	})
	t.Run("of which the last override is changed", func(t *testing.T) {
		g := NewWithT(t)
		current := get(g, &clusterv1.Cluster{}, s.namespace, "large")
		before := current.DeepCopy()
		current.Spec.Topology.Workers.MachineDeployments[99].Variables.Overrides[9].Value = value(`{"a":{"b":{"c":2}},"text":"some text of some length"}`)
		g.Expect(syncer.Patch(ctx, current, client.MergeFrom(before), client.DryRunAll)).To(MatchError(ContainSubstring("variable-9 of pool-99")))
	})
}
