package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// Argo CD's annotations, and the label by which it finds its objects.
const (
	syncOptions, compareOptions = "argocd.argoproj.io/sync-options", "argocd.argoproj.io/compare-options"
	argoInstance                = "app.kubernetes.io/instance"
)

// ids are keys by which a tool deletes what carries them.
var ids = map[string]string{
	"applyset.kubernetes.io/part-of": "applyset-abc-v1", "kapp.k14s.io/app": "1", "kapp.k14s.io/association": "v1.1",
	"clusterctl.cluster.x-k8s.io": "", "clusterctl.cluster.x-k8s.io/move-hierarchy": "",
}

// isPrunedByArgoCD plays Argo CD, which tracks by label and no longer finds the object in Git.
func isPrunedByArgoCD(object client.Object) bool {
	return object.GetLabels()[argoInstance] != "" && len(object.GetOwnerReferences()) == 0 &&
		!slices.Contains(strings.Split(object.GetAnnotations()[syncOptions], ","), "Prune=false")
}

// optOuts returns the annotations by which Argo CD spares an object.
func optOuts(object client.Object) map[string]string {
	annotations := maps.Clone(object.GetAnnotations())
	maps.DeleteFunc(annotations, func(key, _ string) bool { return key != syncOptions && key != compareOptions })
	return annotations
}

var spared = map[string]string{syncOptions: "Prune=false", compareOptions: "IgnoreExtraneous"}

// kubectl apply --prune --applyset deletes the user's own group, and no object of Muster's.
func TestPruningTools(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	classes, team := newNamespace(t, g, "classes", nil), newNamespace(t, g, "team", nil)
	file := func(more string) string {
		return fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {name: standard, namespace: %[1]s, labels: {tier: gold, app.kubernetes.io/instance: platform}}
spec:
  infrastructure: {templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: DevClusterTemplate, name: any}}
  controlPlane: {templateRef: {apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlaneTemplate, name: any}}
---
{apiVersion: fleet.cattle.io/v1alpha1, kind: ClusterGroup, metadata: {name: users, namespace: %[1]s}, spec: {selector: {}}}
%[2]s`, classes, more)
	}
	applySet := func(more string) string {
		t.Helper()
		printed, err := env.KubectlInput(ctx, file(more), "apply", "--server-side", "--prune", "--applyset=configmaps/platform", "-n", classes, "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
		return printed
	}
	const second = "---\n{apiVersion: fleet.cattle.io/v1alpha1, kind: ClusterGroup, metadata: {name: second}, spec: {selector: {}}}\n"
	applySet(second)
	class := named(&clusterv1.ClusterClass{}, classes, "standard")
	exists(g, class)
	g.Expect(class.Labels).To(HaveKey("applyset.kubernetes.io/part-of"))

	cluster := fixture.Cluster(team, "one", "standard", classes)
	cluster.Labels = map[string]string{argoInstance: "team"}
	create(g, cluster)
	initialize(g, cluster)
	willReport(g, cluster, "True Imported")
	s := scene{classes, team, class}
	made := []client.Object{named(&fleetv1.ClusterGroup{}, classes, "standard"), s.group(), s.mapping(), s.fleet("one")}
	exists(g, made...)
	for _, object := range made {
		g.Expect(object.GetLabels()).NotTo(HaveKey("applyset.kubernetes.io/part-of"), "%T", object)
	}
	g.Expect(made[0].GetLabels()).To(And(HaveKeyWithValue("tier", "gold"), HaveKeyWithValue(argoInstance, "platform")))
	uids := idsOf(g, made, client.Object.GetUID)

	g.Expect(applySet("")).To(And(ContainSubstring("clustergroup.fleet.cattle.io/second pruned"), Not(ContainSubstring("standard pruned"))))
	g.Consistently(func(g Gomega) { g.Expect(idsOf(g, made, client.Object.GetUID)).To(Equal(uids)) }).Should(Succeed())
}

// While an object has no owner, Argo CD spares it. One patch takes the owner off, and one gives it back.
func TestPausedIsSpared(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	sets(g, s.class, "labels", map[string]string{argoInstance: "platform"}, false)
	classGroup := named(&fleetv1.ClusterGroup{}, s.classNamespace, "standard")
	for name, copied := range map[string]map[string]string{"plain": {}, "copied": {syncOptions: "Prune=true"}} {
		cluster := s.cluster(name)
		cluster.Labels = map[string]string{argoInstance: "team", "env": "prod"}
		cluster.Annotations = maps.Clone(copied)
		create(g, cluster)
		initialize(g, cluster)
		willReport(g, cluster, "True Imported")
		for _, object := range []client.Object{s.group(), s.mapping()} {
			exists(g, object)
			g.Expect(optOuts(object)).To(Equal(spared), "%T", object)
			g.Expect(isPrunedByArgoCD(object)).To(BeFalse())
		}
		before := fleetCluster(g, s.namespace, name)
		g.Expect(optOuts(before)).To(Equal(copied))
		quiet(g, isWrite, in(s.namespace))
		written := func(since time.Time) int {
			return len(requests(g, since, isWrite, func(e stack.AuditEvent) bool {
				return strings.Contains(e.URI, "/fleet.cattle.io/v1alpha1/namespaces/"+s.namespace+"/clusters/"+name)
			}))
		}
		for range 2 {
			begin := time.Now()
			pause(g, cluster)
			g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, name).OwnerReferences).To(BeEmpty()) }).Should(Succeed())
			paused := fleetCluster(g, s.namespace, name)
			g.Expect(optOuts(paused)).To(Equal(spared))
			g.Expect(isPrunedByArgoCD(paused)).To(BeFalse())
			g.Expect(paused.Labels).To(Equal(before.Labels))
			g.Eventually(func() int { return written(begin) }).Should(Equal(1), "writes in the audit log, which lags behind")
			quiet(g, isWrite, in(s.namespace))
			g.Expect(written(begin)).To(Equal(1))

			begin = time.Now()
			unpause(g, cluster)
			g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, name).OwnerReferences).To(HaveLen(1)) }).Should(Succeed())
			g.Expect(optOuts(fleetCluster(g, s.namespace, name))).NotTo(HaveKeyWithValue(syncOptions, "Prune=false"))
			g.Eventually(func() int { return written(begin) }).Should(Equal(1), "writes in the audit log, which lags behind")
			quiet(g, isWrite, in(s.namespace))
			g.Expect(written(begin)).To(Equal(1))
			again := fleetCluster(g, s.namespace, name)
			g.Expect(again.Annotations).To(Equal(before.Annotations))
			g.Expect(again.Labels).To(Equal(before.Labels))
		}
		patch(g, cluster, entry("annotations", syncOptions, "null"))
		g.Eventually(func(g Gomega) { g.Expect(optOuts(fleetCluster(g, s.namespace, name))).To(BeEmpty()) }).Should(Succeed())
	}

	appears(g, classGroup)
	for range 2 {
		for _, paused := range []bool{true, false} {
			patch(g, s.class, entry("annotations", clusterv1.PausedAnnotation, map[bool]string{true: `"true"`, false: "null"}[paused]))
			g.Eventually(func(g Gomega) {
				exists(g, classGroup)
				g.Expect(len(classGroup.OwnerReferences)).To(Equal(map[bool]int{true: 0, false: 1}[paused]))
			}).Should(Succeed())
			g.Expect(maps.Equal(optOuts(classGroup), spared)).To(Equal(paused))
			g.Expect(isPrunedByArgoCD(classGroup)).To(BeFalse())
		}
	}
}

// With setOwnerReferences off, everything carries the opt-outs; a change of the setting writes or removes them, with the owner.
func TestWithoutOwnersIsSpared(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one", argoInstance)
	classGroup := named(&fleetv1.ClusterGroup{}, s.classNamespace, "standard")
	will := func(want map[string]string, owners int) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			exists(g, classGroup)
			for _, object := range []client.Object{classGroup, fleetCluster(g, s.namespace, "one")} {
				g.Expect(object.GetOwnerReferences()).To(HaveLen(owners))
				g.Expect(maps.Equal(optOuts(object), want)).To(BeTrue(), "%T: %v", object, optOuts(object))
			}
		}).Should(Succeed())
	}
	off := "{cluster: {setOwnerReferences: false}, clusterClass: {setOwnerReferences: false}}"
	will(nil, 1)
	configure(t, g, off)
	will(spared, 0)
	pause(g, cluster)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Annotations).To(HaveKey(stamp.ReleasedAnnotation))
	}).Should(Succeed())
	unpause(g, cluster)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Annotations).NotTo(HaveKey(stamp.ReleasedAnnotation))
	}).Should(Succeed())
	will(spared, 0)
	configure(t, g, "{}")
	will(nil, 1)

	// The setting changes while the Cluster is paused.
	pause(g, cluster)
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(BeEmpty()) }).Should(Succeed())
	configure(t, g, off)
	unpause(g, cluster)
	will(spared, 0)
	configure(t, g, "{}")
	will(nil, 1)

	// What is not patched gets its owner back nevertheless, and the opt-outs go with it.
	pause(g, cluster)
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(BeEmpty()) }).Should(Succeed())
	g.Expect(optOuts(fleetCluster(g, s.namespace, "one"))).To(Equal(spared))
	configure(t, g, "{cluster: {patchResource: false}}")
	unpause(g, cluster)
	will(nil, 1)
}

// If a policy of a user refuses the annotations, Muster removes the owner nevertheless. Otherwise, clusterctl move would make
// Fleet uninstall everything.
func TestRefusedOptOuts(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	classGroup := named(&fleetv1.ClusterGroup{}, s.classNamespace, "standard")
	appears(g, classGroup)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: test-only-argo}
spec:
  matchConstraints:
    namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [%s, %s]}]}
    resourceRules: [{apiGroups: [fleet.cattle.io], apiVersions: ["*"], operations: [UPDATE], resources: [clusters, clustergroups]}]
  validations: [{expression: "!('%s' in object.metadata.?annotations.orValue({}))", message: only Argo CD may}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: test-only-argo}
spec: {policyName: test-only-argo, validationActions: [Deny]}
`, s.namespace, s.classNamespace, syncOptions))).To(Succeed())
	deleteByKubectl(t, "validatingadmissionpolicybinding,validatingadmissionpolicy", "test-only-argo")
	g.Eventually(func() error {
		return admin.Patch(ctx, s.fleet("one"), mergePatch(entry("annotations", syncOptions, `"x"`)), client.DryRunAll)
	}).Should(MatchError(ContainSubstring("only Argo CD may")))
	provoked.Store(s.namespace, true)
	provoked.Store(s.classNamespace, true)

	pause(g, cluster)
	g.Eventually(func(g Gomega) {
		released := fleetCluster(g, s.namespace, "one")
		g.Expect(released.OwnerReferences).To(BeEmpty())
		g.Expect(released.Annotations).To(HaveKeyWithValue(stamp.ReleasedAnnotation, "true"))
	}).Should(Succeed())
	patch(g, s.class, entry("annotations", clusterv1.PausedAnnotation, `"true"`))
	g.Eventually(func(g Gomega) { exists(g, classGroup); g.Expect(classGroup.OwnerReferences).To(BeEmpty()) }).Should(Succeed())
	unpause(g, cluster)
	patch(g, s.class, entry("annotations", clusterv1.PausedAnnotation, "null"))
	g.Eventually(func(g Gomega) {
		exists(g, classGroup)
		g.Expect(classGroup.OwnerReferences).To(HaveLen(1))
		g.Expect(fleetCluster(g, s.namespace, "one").OwnerReferences).To(HaveLen(1))
	}).Should(Succeed())
}

// Objects as the version before wrote them lose the IDs and nothing else. What others wrote, what is paused, and what is
// deselected stays as it is.
func TestUpgradeTakesIDs(t *testing.T) {
	g := NewWithT(t)
	configureCluster(t, g, "{selector: {matchExpressions: [{key: out, operator: DoesNotExist}]}}")
	s := newScene(t, g)
	labels := map[string]string{"env": "prod", argoInstance: "team", "argocd.argoproj.io/instance": "team", "cluster.x-k8s.io/provider": "x"}
	sets(g, s.class, "labels", labels, false)
	clusters := map[string]*clusterv1.Cluster{}
	for _, name := range []string{"one", "paused", "out"} {
		cluster := s.cluster(name)
		cluster.Labels, cluster.Annotations = maps.Clone(labels), map[string]string{"note": "kept"}
		create(g, cluster)
		initialize(g, cluster)
		willReport(g, cluster, "True Imported")
		clusters[name] = cluster
	}
	pause(g, clusters["paused"])
	willReport(g, clusters["paused"], "True Paused")
	sets(g, clusters["out"], "labels", map[string]string{"out": "yes"}, false)
	willReport(g, clusters["out"], "True Deselected")
	quiet(g, isWrite)

	start := stop(t, g, syncerProcess)
	classGroup := named(&fleetv1.ClusterGroup{}, s.classNamespace, "standard")
	written := []client.Object{s.fleet("one"), classGroup, s.group()}
	frozen := []client.Object{s.fleet("paused"), s.fleet("out")}
	for _, name := range []string{"one", "paused", "out"} {
		sets(g, clusters[name], "labels", ids, false)
		sets(g, clusters[name], "annotations", map[string]string{"argocd.argoproj.io/tracking-id": "x"}, false)
	}
	sets(g, s.class, "labels", ids, false)
	var want []map[string]string
	for _, object := range slices.Concat(written, frozen, []client.Object{s.mapping()}) {
		want = append(want, s.asBefore(g, object))
	}
	theirs := map[string]string{"applyset.kubernetes.io/part-of": "theirs"}
	sets(g, s.mapping(), "labels", theirs, false)
	versions := idsOf(g, frozen, client.Object.GetResourceVersion)
	uids := idsOf(g, written, client.Object.GetUID)
	start()

	g.Eventually(func(g Gomega) {
		exists(g, written...)
		for i, object := range written {
			g.Expect(object.GetLabels()).To(Equal(want[i]), "%T", object)
			g.Expect(object.GetAnnotations()).NotTo(HaveKey("argocd.argoproj.io/tracking-id"))
		}
		mapping := s.mapping()
		exists(g, mapping)
		g.Expect(mapping.Labels).To(Equal(map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, "applyset.kubernetes.io/part-of": "theirs"}))
		g.Expect(optOuts(mapping)).To(Equal(spared))
		g.Expect(optOuts(written[2])).To(Equal(spared))
		g.Expect(fleetCluster(g, s.namespace, "one").Annotations).To(HaveKeyWithValue("note", "kept"))
	}).Should(Succeed())
	quiet(g, isWrite)
	g.Expect(idsOf(g, written, client.Object.GetUID)).To(Equal(uids))
	g.Expect(idsOf(g, frozen, client.Object.GetResourceVersion)).To(Equal(versions))
	g.Expect(fleetCluster(g, s.namespace, "paused").Labels).To(HaveKey("applyset.kubernetes.io/part-of"))

	// Unpaused and selected again, they lose the IDs, too.
	unpause(g, clusters["paused"])
	patch(g, clusters["out"], entry("labels", "out", "null"))
	g.Eventually(func(g Gomega) {
		for i, object := range frozen {
			exists(g, object)
			g.Expect(object.GetLabels()).To(Equal(want[len(written)+i]))
			g.Expect(optOuts(object)).To(BeEmpty())
		}
	}).Should(Succeed())
}

// asBefore writes an object as Muster did before it left IDs out and wrote opt-outs, and returns the labels without the IDs.
func (s scene) asBefore(g Gomega, object client.Object) map[string]string {
	exists(g, object)
	labels := maps.Clone(object.GetLabels())
	object.SetManagedFields(nil)
	object.SetResourceVersion("")
	object.SetUID("")
	withIDs, annotations := maps.Clone(labels), maps.Clone(object.GetAnnotations())
	if _, isMapping := object.(*fleetv1.BundleNamespaceMapping); !isMapping {
		maps.Copy(withIDs, ids)
	}
	if _, isCluster := object.(*fleetv1.Cluster); isCluster {
		annotations["argocd.argoproj.io/tracking-id"] = "x"
	}
	delete(annotations, syncOptions)
	delete(annotations, compareOptions)
	annotations[desired.HashAnnotation] = "of-another-version"
	object.SetLabels(withIDs)
	object.SetAnnotations(annotations)
	fields, err := desired.Configuration(object)
	g.Expect(err).NotTo(HaveOccurred())
	kind, err := admin.GroupVersionKindFor(object)
	g.Expect(err).NotTo(HaveOccurred())
	fields["apiVersion"], fields["kind"] = kind.GroupVersion().String(), kind.Kind
	if released := annotations[stamp.ReleasedAnnotation] != ""; released { // A patch has set them, which an apply leaves.
		patch(g, object, fmt.Sprintf(`{"metadata":{"annotations":{%q:null,%q:null}}}`, syncOptions, compareOptions))
	}
	g.Expect(admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: fields}), client.FieldOwner(stamp.FieldManager), client.ForceOwnership)).To(Succeed())
	return labels
}

// What is excluded from copying goes from Fleet, and comes back when it is not.
func TestCopyExclude(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	sets(g, s.class, "labels", map[string]string{"tier": "gold", "example.com/a": "x"}, false)
	cluster := s.cluster("one")
	cluster.Labels = map[string]string{"env": "prod", "example.com/b": "x"}
	cluster.Annotations = map[string]string{"note": "kept", "example.com/c": "x"}
	create(g, cluster)
	initialize(g, cluster)
	willReport(g, cluster, "True Imported")
	will := func(labels, annotations, ofGroup map[string]string) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			gotLabels, gotAnnotations, _ := copiedOf(fleetCluster(g, s.namespace, "one"))
			g.Expect(gotLabels).To(Equal(labels))
			g.Expect(gotAnnotations).To(Equal(annotations))
			for _, group := range []*fleetv1.ClusterGroup{s.group(), named(&fleetv1.ClusterGroup{}, s.classNamespace, "standard")} {
				exists(g, group)
				maps.DeleteFunc(group.Labels, func(key, _ string) bool { return stamp.IsKey(key) || key == stamp.ManagedByLabel })
				g.Expect(group.Labels).To(Equal(ofGroup))
			}
		}).Should(Succeed())
	}
	all := func() {
		t.Helper()
		will(map[string]string{"env": "prod", "tier": "gold", "example.com/a": "x", "example.com/b": "x"},
			map[string]string{"note": "kept", "example.com/c": "x"}, map[string]string{"tier": "gold", "example.com/a": "x"})
	}
	all()
	configureCluster(t, g, "{copy: {exclude: [env, example.com/*]}}")
	will(map[string]string{"tier": "gold"}, map[string]string{"note": "kept"}, map[string]string{"tier": "gold"})
	g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "standard"))
	configureCluster(t, g, "{}")
	all()
}
