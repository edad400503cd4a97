package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack/parts"
)

func needsMutatingPolicies(t *testing.T) {
	t.Helper()
	if !parts.Chosen.HasMutatingPolicies() {
		t.Skip("MutatingAdmissionPolicies need Kubernetes 1.36")
	}
}

func needsFleet016(t *testing.T) {
	t.Helper()
	if !parts.Chosen.HasFleet016() {
		t.Skip("Policies and agentPullSecrets need Fleet 0.16")
	}
}

// mutate makes a foreign policy change what the syncer writes to these resources, as a mutating webhook would, until
// the test ends or undo is called. It returns when the policy is in force: when sees succeeds with the answer, and
// the error, to the syncer's stamping of a Cluster.
func mutate(t *testing.T, g Gomega, groups, resources, mutation string, of *clusterv1.Cluster, sees func(Gomega, *clusterv1.Cluster, error)) (undo func()) {
	t.Helper()
	needsMutatingPolicies(t)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: test-somebody-elses}
spec:
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints: {resourceRules: [{apiGroups: [%s], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [%s]}]}
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
	undo = func() {
		_, err := env.Kubectl(ctx, "delete", "--ignore-not-found", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "test-somebody-elses")
		g.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(undo)
	syncer := thief(g)
	g.Eventually(func(g Gomega) {
		probe := named(&clusterv1.Cluster{}, of.Namespace, of.Name)
		err := syncer.Patch(ctx, probe, mergePatch(entry("annotations", stamp.ClusterNameAnnotation, `"x"`)), client.DryRunAll)
		sees(g, probe, err)
	}).Should(Succeed())
	return undo
}

// unstamped creates a Cluster that waits for the syncer to stamp it, and returns a function that starts the syncer.
// The webhook is down until the test ends.
func (s scene) unstamped(t *testing.T, g Gomega, cluster *clusterv1.Cluster) (start func()) {
	t.Helper()
	start = stop(t, g, syncerProcess)
	create(g, cluster)
	stop(t, g, webhookProcess)
	strip(g, cluster)
	initialize(g, cluster)
	return start
}

const cost = "example.com/cost"

// A foreign webhook puts a label on every object, and the syncer's own policies see that label in the syncer's
// requests. They let it pass: stamping, importing, releasing and retiring go on, and syncer and webhook do not fight
// over the label.
func TestOthersLabelEverything(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.cluster("one")
	start := s.unstamped(t, g, cluster)
	patch(g, s.class, `{"metadata":{"finalizers":["`+stamp.Domain+`"]}}`)
	bundle := target(fleetVersion, "Bundle", s.classNamespace, "bundle")
	create(g, bundle.DeepCopy())
	deployment := s.deployed(t, g, "bundle", "one")
	mutate(t, g, `"", fleet.cattle.io, cluster.x-k8s.io, addons.cluster.x-k8s.io, events.k8s.io, coordination.k8s.io`, `"*"`, fmt.Sprintf(`
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: 'Object{metadata: Object.metadata{labels: {%[1]q: "team"}, annotations: {%[1]q: "team"}}}'}
`, cost), cluster, func(g Gomega, probe *clusterv1.Cluster, err error) {
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(probe.Labels).To(HaveKeyWithValue(cost, "team"))
	})
	marked := func(g Gomega, objects ...client.Object) {
		exists(g, objects...)
		for _, object := range objects {
			g.Expect(object.GetLabels()).To(HaveKeyWithValue(cost, "team"), "%T", object)
		}
	}
	begin := time.Now()
	start()

	g.Eventually(func(g Gomega) {
		reports(g, cluster, "True Imported")
		namespace, class := named(&corev1.Namespace{}, "", s.namespace), s.class.DeepCopy()
		marked(g, cluster, s.fleet("one"), namespace, class, s.group(), s.mapping())
		g.Expect(cluster.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
		g.Expect(namespace.Annotations).To(HaveKey(workspace))
		g.Expect(class.Finalizers).To(BeEmpty())
	}).Should(Succeed())
	converged := time.Now().Add(time.Second)
	g.Consistently(func(g Gomega) { g.Expect(requests(g, converged, in(s.namespace), isWrite)).To(BeEmpty()) }, 4*time.Second).Should(Succeed())

	pause(g, cluster)
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(BeEmpty()) }).Should(Succeed())
	unpause(g, cluster)
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).NotTo(BeEmpty()) }).Should(Succeed())
	remove(g, cluster)
	g.Eventually(func(g Gomega) {
		marked(g, bundle)
		g.Expect(bundle.GetAnnotations()).To(HaveKey(stamp.Domain + "/retarget"))
	}).Should(Succeed())
	remove(g, deployment)
	vanishes(g, s.mapping(), s.group())
	g.Expect(requests(g, begin, isRefused)).To(BeEmpty())
}

// A class got new variables since a Cluster was written. At the next write, by any client, Cluster API's webhook
// fills in their defaults, wherever variables may be.
func TestOthersFillInVariables(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.cluster("one")
	start := s.unstamped(t, g, cluster)
	patch(g, cluster, `{"spec":{"topology":{
		"variables":[{"name":"disks","value":{"root":{"size":1}}}],
		"controlPlane":{"replicas":1,"variables":{"overrides":[{"name":"disks","value":{"root":{"size":2}}}]}},
		"workers":{"machineDeployments":[{"class":"default","name":"md","variables":{"overrides":[{"name":"disks","value":{"root":{"size":3}}}]}}],
			"machinePools":[{"class":"default","name":"mp"}]}
	}}}`)
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
`, cluster, func(g Gomega, probe *clusterv1.Cluster, err error) {
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(probe.Spec.Topology.Variables).To(HaveLen(2))
	})
	begin := time.Now()
	start()
	g.Eventually(func(g Gomega) {
		reports(g, cluster, "True Imported")
		stamped := current(g, cluster)
		g.Expect(stamped.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
		g.Expect(stamped.Spec.Topology.ControlPlane.Variables.Overrides).To(HaveLen(2))
		g.Expect(stamped.Spec.Topology.Workers.MachinePools[0].Variables.Overrides).To(HaveLen(1))
	}).Should(Succeed())
	g.Expect(requests(g, begin, isRefused)).To(BeEmpty())
}

// A foreign webhook's change to the syncer's request is refused like the syncer's own. The condition names the
// change, so that users know which webhook to look at.
func TestOthersChangeIsNamed(t *testing.T) {
	for name, test := range map[string]struct{ mutation, named string }{
		"a label is changed":      {`Object{metadata: Object.metadata{labels: {"team": "b"}}}`, "labels and annotations of a Cluster: team"},
		"a reserved one is added": {`Object{metadata: Object.metadata{annotations: {"cluster.x-k8s.io/paused": ""}}}`, "cluster.x-k8s.io/paused"},
		"the version is changed":  {`Object{spec: Object.spec{topology: Object.spec.topology{version: "v1.99.0"}}}`, "spec.topology.version"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			provoked.Store(s.namespace, true)
			cluster := s.cluster("one")
			cluster.Labels = map[string]string{"team": "a"}
			start := s.unstamped(t, g, cluster)
			undo := mutate(t, g, "cluster.x-k8s.io", "clusters", `
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: '`+test.mutation+`'}
`, cluster, func(g Gomega, _ *clusterv1.Cluster, err error) {
				g.Expect(err).To(MatchError(ContainSubstring(test.named)))
			})
			start()
			willReport(g, cluster, "Failed", "muster-syncer-clusters", test.named)
			undo()
			willReport(g, cluster, "True Imported")
		})
	}
}

// The API server limits the cost of a policy. The fence stays below the limit for the largest Clusters.
func TestFenceOfALargeCluster(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.cluster("large")
	const value = `{"a":{"b":{"c":1}},"text":"some text of some length"}`
	variables := func(count int) (result []clusterv1.ClusterVariable) {
		for i := range count {
			result = append(result, clusterv1.ClusterVariable{Name: fmt.Sprintf("variable-%d", i), Value: apiextensionsv1.JSON{Raw: []byte(value)}})
		}
		return result
	}
	cluster.Spec.Topology.Variables = variables(50)
	cluster.Labels, cluster.Annotations = map[string]string{}, map[string]string{}
	for i := range 100 {
		cluster.Spec.Topology.Workers.MachineDeployments = append(cluster.Spec.Topology.Workers.MachineDeployments,
			clusterv1.MachineDeploymentTopology{Name: fmt.Sprintf("pool-%d", i), Class: "default",
				Variables: clusterv1.MachineDeploymentVariables{Overrides: variables(10)}})
		cluster.Labels[fmt.Sprintf("label-%d", i)], cluster.Annotations[fmt.Sprintf("annotation-%d", i)] = "x", "x"
	}
	create(g, cluster)
	t.Cleanup(func() { deleteNow(NewWithT(t), cluster) }) // Other tests count waiting Clusters.
	write := func(change func(pool, variable int) (value string, changed bool)) error {
		live := current(g, cluster)
		before := live.DeepCopy()
		for i := range live.Spec.Topology.Workers.MachineDeployments {
			overrides := live.Spec.Topology.Workers.MachineDeployments[i].Variables.Overrides
			for j := range overrides {
				if value, changed := change(i, j); changed {
					overrides[j].Value.Raw = []byte(value)
				}
			}
		}
		live.Annotations[stamp.ClusterNameAnnotation] = "x"
		begin := time.Now()
		defer func() { t.Logf("%s", time.Since(begin)) }()
		return thief(g).Patch(ctx, live, client.MergeFrom(before), client.DryRunAll)
	}
	g.Expect(write(func(int, int) (string, bool) { return "", false })).To(Succeed(), "nothing differs")
	g.Expect(write(func(_, variable int) (string, bool) {
		return `{"a":{"b":{"c":1,"new":1}},"text":"some text of some length"}`, variable == 0
	})).To(Succeed(), "a default is added everywhere")
	g.Expect(write(func(pool, variable int) (string, bool) {
		return `{"a":{"b":{"c":2}},"text":"some text of some length"}`, pool == 99 && variable == 9
	})).To(MatchError(ContainSubstring("variable-9 of MachineDeployment pool-99")))
}

// withClassLabels installs the component until the test ends. It returns when the API server labels Clusters.
func withClassLabels(t *testing.T, g Gomega, namespace string) {
	t.Helper()
	needsMutatingPolicies(t)
	deleteByKubectl(t, "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "muster-class-labels")
	g.Expect(env.StartComponent(ctx, "class-labels")).To(Succeed())
	g.Eventually(func(g Gomega) {
		probe := fixture.Cluster(namespace, "probe", "probe", "")
		g.Expect(admin.Create(ctx, probe, client.DryRunAll)).To(Succeed())
		g.Expect(probe.Labels).To(HaveKey(stamp.ClassNameLabel))
	}).Should(Succeed())
}

// Without the webhook, the API server alone labels Clusters with their class, on every change that concerns the
// class. It leaves shortening of a name, which it cannot do, to the syncer. It keeps a forged label only if the label
// could be right.
func TestClassLabelsWithoutTheWebhook(t *testing.T) {
	g := NewWithT(t)
	namespace, classNamespace := newNamespace(t, g, "labels", nil), newNamespace(t, g, "classes", nil)
	stop(t, g, syncerProcess)
	stop(t, g, webhookProcess)
	withoutWebhooks(t, g, named(&admissionregistrationv1.MutatingWebhookConfiguration{}, "", "muster-mutating-webhook"),
		named(&admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook"))
	withClassLabels(t, g, namespace)

	const tooLong = "a-class-whose-name-is-longer-than-the-63-characters-of-a-label-value"
	type labels = map[string]string
	of := func(class, namespace string) labels {
		return labels{stamp.ClassNameLabel: class, stamp.ClassNamespaceLabel: namespace}
	}
	unnamed, forged := labels{stamp.ClassNamespaceLabel: namespace}, of("other", classNamespace)
	for name, test := range map[string]struct {
		class, classNamespace string
		labels, want          labels
	}{
		"of its own namespace":             {"standard", "", nil, of("standard", namespace)},
		"of another namespace":             {"standard", classNamespace, nil, of("standard", classNamespace)},
		"labels of its own":                {"standard", "", labels{"a/b": "c"}, stamp.Merge(labels{"a/b": "c"}, of("standard", namespace))},
		"forged labels":                    {"standard", "", forged, of("standard", namespace)},
		"forged labels, no class":          {"", "", stamp.Merge(labels{"a": "b"}, forged), labels{"a": "b"}},
		"a class with dots":                {"standard.v1", "", nil, of("standard.v1", namespace)},
		"63 characters":                    {tooLong[:62] + "x", "", nil, of(tooLong[:62]+"x", namespace)},
		"64 characters":                    {tooLong[:63] + "x", "", nil, unnamed},
		"64 characters, labels of another": {tooLong, "", forged, unnamed},
		"64 characters, shortened":         {tooLong, "", of(tooLong[:54]+"-0123abcd", classNamespace), of(tooLong[:54]+"-0123abcd", namespace)},
		"shortened, but of another":        {tooLong, "", of("other-0123abcd", namespace), unnamed},
		"no class, no labels":              {"", "", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := fixture.Cluster(namespace, "", test.class, test.classNamespace)
			cluster.GenerateName, cluster.Labels = "cluster-", test.labels // No label depends on the name.
			create(g, cluster)
			g.Expect(current(g, cluster).Labels).To(Equal(test.want))
		})
	}

	// The labels follow the class.
	cluster := fixture.Cluster(namespace, "follows", "standard", classNamespace)
	create(g, cluster)
	classRef := func(fields string) string { return `{"spec": {"topology": {"classRef": {` + fields + `}}}}` }
	prod := labels{"env": "prod"}
	for _, step := range []struct {
		patch string
		want  labels
	}{
		{`{"metadata": {"labels": null}}`, of("standard", classNamespace)},
		{`{"metadata": {"labels": {"env": "prod", "` + stamp.ClassNameLabel + `": "forged"}}}`, stamp.Merge(prod, of("standard", classNamespace))},
		{classRef(`"name": "large"`), stamp.Merge(prod, of("large", classNamespace))},
		{classRef(`"namespace": null`), stamp.Merge(prod, of("large", namespace))},
		{classRef(`"name": "` + tooLong + `"`), stamp.Merge(prod, unnamed)}, // Only a hash would be right.
		{classRef(`"name": "small"`), stamp.Merge(prod, of("small", namespace))},
		{`{"spec": {"topology": null}}`, prod},
	} {
		patch(g, cluster, step.patch)
		g.Expect(current(g, cluster).Labels).To(Equal(step.want), step.patch)
	}
}

// With the webhook, each Cluster gets the same stamp as without the policy: neither changes the other's labels.
func TestClassLabelsBesideTheWebhook(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	stop(t, g, syncerProcess)
	tooLong := fixture.Cluster(s.namespace, "too-long", strings.Repeat("long.", 14)+"name", "")
	clusters := []*clusterv1.Cluster{fixture.Cluster(s.namespace, "own", "standard", ""), s.cluster("other"), tooLong,
		fixture.Cluster(s.namespace, "forged", "standard", ""), fixture.Cluster(s.namespace, "none", "", "")}
	for _, cluster := range clusters[3:] {
		cluster.Labels = map[string]string{stamp.ClassNameLabel: "forged", stamp.ClassNamespaceLabel: "forged", "env": "prod"}
	}
	dry := func() (seen [][]map[string]string) {
		for _, cluster := range clusters {
			cluster = cluster.DeepCopy()
			g.Expect(admin.Create(ctx, cluster, client.DryRunAll)).To(Succeed())
			g.Expect(stamp.PinOf(cluster.Annotations).IsComplete()).To(BeTrue(), "%s is not stamped by the webhook", cluster.Name)
			seen = append(seen, []map[string]string{cluster.Labels, cluster.Annotations})
		}
		return seen
	}
	alone := dry()
	withClassLabels(t, g, s.namespace)
	g.Expect(dry()).To(Equal(alone))

	// The webhook's labels for a class whose name is too long stay through later changes.
	create(g, tooLong)
	patch(g, tooLong, entry("labels", "env", `"prod"`))
	g.Expect(tooLong.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, alone[2][0][stamp.ClassNameLabel]))
}
