package integration

import (
	"encoding/json"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
)

// bothWays runs a test with the stamp, and then without it: a tenant can make the stamp fail open, with many large
// requests at once.
func bothWays(t *testing.T, test func(t *testing.T, isStamped bool)) {
	t.Run("stamped", func(t *testing.T) { test(t, true) })
	t.Run("let through unstamped", func(t *testing.T) {
		g := NewWithT(t)
		const path = "/webhooks/0/matchConditions"
		before := get(g, &admissionregistrationv1.MutatingWebhookConfiguration{}, "", "muster-mutating-webhook")
		configuration := before.DeepCopy()
		match := func(conditions []admissionregistrationv1.MatchCondition) {
			body, err := json.Marshal([]map[string]any{{"op": "replace", "path": path, "value": conditions}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(admin.Patch(ctx, configuration, client.RawPatch(types.JSONPatchType, body))).To(Succeed())
		}
		stamps := func() bool {
			probe := fixture.Cluster("default", "probe", "class", "")
			g.Expect(admin.Create(ctx, probe, client.DryRunAll)).To(Succeed())
			return probe.Labels[stamp.ClassNameLabel] != ""
		}
		match([]admissionregistrationv1.MatchCondition{{Name: "never", Expression: "false"}})
		t.Cleanup(func() {
			match(before.Webhooks[0].MatchConditions)
			g.Eventually(stamps).Should(BeTrue())
		})
		g.Eventually(stamps).Should(BeFalse())
		test(t, false)
	})
}

// Naming a class of another namespace delivers that namespace's bundles, so only users who may get the class may name
// it.
func TestTenants(t *testing.T) { bothWays(t, testTenants) }

func testTenants(t *testing.T, _ bool) {
	g := NewWithT(t)
	s := newScene(t, g)
	other := newNamespace(t, g, "other-team", nil)
	newClass(g, other, "own", nil)
	clusters, classes := may("cluster.x-k8s.io", "clusters", "get", "create", "update", "patch", "delete"), may("cluster.x-k8s.io", "clusterclasses", "get")
	for _, who := range []string{"anna", "ben", "carla"} {
		grant(t, g, s.namespace, who, clusters)
	}
	grant(t, g, other, "ben", clusters)
	grant(t, g, s.classNamespace, "anna", classes)
	grant(t, g, s.classNamespace, "group:class-readers", classes)

	anna, ben := tenant(g, "anna"), tenant(g, "ben")
	refused := func(g Gomega, err error) {
		isForbidden(g, err, `user "ben"`, "get clusterclasses.cluster.x-k8s.io", fmt.Sprintf("namespace %q", s.classNamespace), "ask for a Role")
	}
	t.Run("who may get the class may use it", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(anna.Create(ctx, s.cluster("annas"))).To(Succeed())
		g.Expect(tenant(g, "carla", "class-readers").Create(ctx, s.cluster("carlas"))).To(Succeed(), "a group counts")
	})
	t.Run("who may not is refused, dry run and v1beta1 included", func(t *testing.T) {
		g := NewWithT(t)
		refused(g, ben.Create(ctx, s.cluster("bens")))
		refused(g, ben.Create(ctx, s.cluster("bens"), client.DryRunAll))
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
		refused(g, ben.Patch(ctx, cluster.DeepCopy(), mergePatch(`{"spec":{"topology":{"classRef":{"name":"standard","namespace":"`+s.classNamespace+`"}}}}`)))
		g.Eventually(func(g Gomega) { // The syncer may just have written its condition.
			live := current(g, cluster)
			live.Spec.Topology.ClassRef = s.cluster("any").Spec.Topology.ClassRef
			refused(g, ben.Update(ctx, live))
		}).Should(Succeed())
		isAbsentThroughout(g, named(&fleetv1.BundleNamespaceMapping{}, s.classNamespace, other))
	})
	t.Run("another change of a Cluster that uses the class asks nobody", func(t *testing.T) {
		NewWithT(t).Expect(ben.Patch(ctx, s.cluster("annas"), mergePatch(entry("labels", "by", `"ben"`)))).To(Succeed())
	})
	t.Run("it fails closed, for such Clusters only", func(t *testing.T) {
		g := NewWithT(t)
		defer stop(t, g, webhookProcess)()
		g.Expect(anna.Create(ctx, s.cluster("closed"))).To(MatchError(ContainSubstring("class-access.clusters.fleet.addons.cluster.x-k8s.io")))
		g.Expect(ben.Create(ctx, fixture.Cluster(other, "open", "own", ""))).To(Succeed())
	})
	t.Run("where everybody may read the classes, the verb use is asked about", func(t *testing.T) {
		g := NewWithT(t)
		configure(t, g, "{policy: {crossNamespaceClassVerb: use}}")
		g.Eventually(func(g Gomega) { // Until the webhook has read the settings.
			isForbidden(g, anna.Create(ctx, s.cluster("reader"), client.DryRunAll),
				"may not use clusterclasses.cluster.x-k8s.io", "with verb use on resource clusterclasses")
		}).Should(Succeed())
		use := may("cluster.x-k8s.io", "clusterclasses", "use")
		use.ResourceNames = []string{"standard"}
		grant(t, g, s.classNamespace, "ben", use)
		g.Expect(ben.Create(ctx, s.cluster("user"))).To(Succeed())
		isForbidden(g, anna.Create(ctx, s.cluster("reader")))
	})
	for _, policy := range []string{"Warn", `"Off"`} {
		t.Run("unless the policy says "+policy, func(t *testing.T) {
			g := NewWithT(t)
			configure(t, g, "{policy: {crossNamespaceClass: "+policy+"}}")
			g.Eventually(func() error { return ben.Create(ctx, s.cluster("lax"), client.DryRunAll) }).Should(Succeed())
		})
	}
}

// A tenant who writes a pin onto a Cluster that is not selected does not make it a user of its class: the webhook
// removes the pin, and without the webhook the syncer ignores it.
func TestForgedPinClaimsNothing(t *testing.T) { bothWays(t, testForgedPinClaimsNothing) }

func testForgedPinClaimsNothing(t *testing.T, isStamped bool) {
	g := NewWithT(t)
	s := newScene(t, g)
	configureCluster(t, g, `{namespaceSelector: {matchLabels: {import: "yes"}}}`)
	configObserved(g)
	grant(t, g, s.namespace, "mallory", may("cluster.x-k8s.io", "clusters", "*"))
	g.Eventually(func(g Gomega) { // Until the webhook has read the settings.
		probe := s.cluster("probe")
		g.Expect(admin.Create(ctx, probe, client.DryRunAll)).To(Succeed())
		g.Expect(stamp.PinOf(probe.Annotations)).To(Equal(stamp.Pin{}))
		g.Expect(probe.Labels[stamp.ClassNameLabel] != "").To(Equal(isStamped), "the webhook did not answer")
	}).Should(Succeed())
	cluster := s.started(g, "one")
	s.started(g, "two")
	forge := func(g Gomega, name string, annotations map[string]string) map[string]string {
		forged := s.cluster(name)
		body, err := json.Marshal(stamp.Merge(annotations, map[string]string{"tried": fmt.Sprint(len(annotations))}))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(tenant(g, "mallory").Patch(ctx, forged, mergePatch(fmt.Sprintf(`{"metadata":{"annotations":%s}}`, body)))).To(Succeed())
		return forged.Annotations
	}
	unopened := func(g Gomega) {
		isAbsentThroughout(g, s.mapping(), s.group(), s.fleet("one"), s.fleet("two"))
		g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).NotTo(HaveKey(workspace))
	}
	for name, pin := range map[string]map[string]string{
		"both": pinned("one"), "owner": {stamp.OwnedByAnnotation: "fleet-addon-config"}, "name": {stamp.ClusterNameAnnotation: "one"},
	} {
		t.Run("the webhook takes it off: "+name, func(t *testing.T) {
			g := NewWithT(t)
			written := forge(g, "one", pin)
			g.Expect(written).To(HaveKey("tried"))
			if isStamped {
				g.Expect(written).To(haveNoKeys(stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation))
			}
		})
	}
	unopened(g)
	t.Run("without the webhook it is not believed", func(t *testing.T) {
		g := NewWithT(t)
		stop(t, g, webhookProcess)
		g.Expect(forge(g, "two", pinned("two"))).To(haveKeys(stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation))
		unopened(g)
	})
	t.Run("but the syncer pins what is selected later", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, named(&corev1.Namespace{}, "", s.namespace), entry("labels", "import", `"yes"`))
		appears(g, s.fleet("one"))
		g.Expect(stamp.PinOf(current(g, cluster).Annotations)).To(Equal(stamp.Pin{OwnedBy: "fleet-addon-config", ClusterName: "one"}))
	})
}

// The syncer removes Muster's keys that it does not set itself, whichever user wrote them.
func TestOwnKeysThatNobodyWantsGo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "user")
	plain := plainCluster(g, s.namespace, "plain", nil)
	initialize(g, plain)
	appears(g, s.fleet("plain"))
	quiet(g, in(s.namespace))
	for object, label := range map[client.Object]string{s.fleet("plain"): stamp.ClassNameLabel, s.mapping(): stamp.ClassNameLabel, s.group(): "none"} {
		patchf(g, object, `{"metadata":{"labels":{%q:"x"},"annotations":{"%s/foreign":"x","others.example/note":"stays"}}}`, label, stamp.Domain)
		g.Eventually(func(g Gomega) {
			exists(g, object)
			g.Expect(object.GetAnnotations()).To(And(Not(HaveKey(stamp.Domain+"/foreign")), HaveKeyWithValue("others.example/note", "stays")), "%T", object)
			if label != "none" {
				g.Expect(object.GetLabels()).NotTo(HaveKey(label), "%T", object)
			}
		}).Should(Succeed())
	}
}

// bookkeeping are the keys with which Muster records its actions on Fleet's objects.
var bookkeeping = map[string][]string{
	"labels": {stamp.ClassNameLabel, stamp.ClassNamespaceLabel},
	"annotations": {
		stamp.ReleasedAnnotation, stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation,
		desired.TargetingAnnotation, desired.HashAnnotation, stamp.ClassFullNameAnnotation, desired.RetargetAnnotation,
	},
}

// A tenant may do everything with Fleet's objects in his namespace, except forge Muster's records on them.
func TestBookkeepingIsMustersOwn(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	everything, tom, backup := may("*", "*", "*"), "tom-"+s.namespace, "backup-"+s.namespace
	grant(t, g, s.namespace, tom, everything)
	grant(t, g, s.namespace, backup, everything)
	grant(t, g, "", backup, get(g, &rbacv1.ClusterRole{}, "", "muster-bookkeeper").Rules...)
	his, theirs := tenant(g, tom), tenant(g, backup)
	refused := func(g Gomega, err error, key string) {
		isForbidden(g, err, "ValidatingAdmissionPolicy 'muster-bookkeeping'", key)
	}
	one, bare := target(fleetVersion, "Cluster", s.namespace, "one"), target(fleetVersion, "Cluster", s.namespace, "bare")
	create(g, object(g, fmt.Sprintf("{apiVersion: %s, kind: ClusterGroup, metadata: {namespace: %s, name: bare}, spec: {selector: {}}}", fleetVersion,
		s.namespace)),
		named(&fleetv1.BundleNamespaceMapping{}, s.namespace, "bare"))
	managed := bare.DeepCopy()
	managed.SetLabels(map[string]string{stamp.ManagedByLabel: stamp.ManagedBy})
	create(g, managed)

	for where, keys := range bookkeeping {
		for _, key := range keys {
			for _, kind := range []string{"Cluster", "ClusterGroup", "BundleNamespaceMapping"} {
				t.Run(kind+" "+key, func(t *testing.T) {
					g := NewWithT(t)
					made := func() *unstructured.Unstructured {
						object := target(fleetVersion, kind, s.namespace, "forged")
						if where == "labels" {
							object.SetLabels(map[string]string{key: "x", stamp.ManagedByLabel: stamp.ManagedBy})
						} else {
							object.SetAnnotations(map[string]string{key: "true"})
						}
						return object
					}
					refused(g, his.Create(ctx, made()), key)
					refused(g, his.Patch(ctx, target(fleetVersion, kind, s.namespace, "bare"), mergePatch(entry(where, key, `"true"`))), key)
					// A cluster administrator may, and so may a user who was given the verb for it.
					for _, writer := range []client.Client{admin, theirs} {
						g.Expect(writer.Create(ctx, made(), client.DryRunAll)).To(Succeed())
					}
				})
			}
		}
	}
	t.Run("what Muster wrote is neither changed nor removed", func(t *testing.T) {
		g := NewWithT(t)
		written := map[string][]string{"labels": bookkeeping["labels"], "annotations": {stamp.ImportedFromAnnotation, desired.HashAnnotation,
			desired.TargetingAnnotation}}
		for where, keys := range written {
			for _, key := range keys {
				for _, value := range []string{`"x"`, "null"} {
					refused(g, his.Patch(ctx, one.DeepCopy(), mergePatch(entry(where, key, value))), key)
				}
			}
		}
		// The message says what to do.
		isForbidden(g, his.Patch(ctx, one.DeepCopy(), mergePatch(entry("labels", stamp.ClassNameLabel, `"x"`))), "Leave it as it is", "labels of your own",
			"bookkeep")
	})
	t.Run("everything else passes", func(t *testing.T) {
		g := NewWithT(t)
		for _, change := range []string{entry("annotations", stamp.AdoptAnnotation, `"true"`), entry("labels", stamp.ManagedByLabel, "null")} {
			g.Expect(his.Patch(ctx, bare.DeepCopy(), mergePatch(change), client.DryRunAll)).To(Succeed())
		}
		g.Eventually(func(g Gomega) {
			g.Expect(his.Get(ctx, client.ObjectKeyFromObject(one), one)).To(Succeed())
			one.SetAnnotations(stamp.Merge(one.GetAnnotations(), map[string]string{"a": "b"}))
			g.Expect(his.Update(ctx, one, client.DryRunAll)).To(Succeed(), "the whole object, our keys unchanged")
		}).Should(Succeed())
		g.Expect(his.Delete(ctx, one, client.DryRunAll)).To(Succeed())
	})
}

// A role in one namespace that includes BundleNamespaceMappings lets a tenant deploy to the clusters of every
// namespace, because Fleet checks no rights there. The optional component refuses that, and does not restrict the
// syncer and cluster administrators.
func TestMappingsOfTenants(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	namespace := newNamespace(t, g, "tenant", nil)
	grant(t, g, namespace, "mallory", may("*", "*", "*"))
	mallory := tenant(g, "mallory")
	toEverybody := func(name string) *fleetv1.BundleNamespaceMapping {
		return &fleetv1.BundleNamespaceMapping{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
			BundleSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{},
		}
	}

	// Without the component, a role in the tenant's own namespace is enough.
	closed := toEverybody("closed")
	closed.NamespaceSelector = nil
	for _, mapping := range []client.Object{toEverybody("open"), closed} {
		g.Expect(mallory.Create(ctx, mapping)).To(Succeed())
	}
	deleteByKubectl(t, "validatingadmissionpolicybinding,validatingadmissionpolicy", "muster-mapping-authors")
	g.Expect(env.StartComponent(ctx, "mapping-authors")).To(Succeed())
	const refusal = "ask a cluster administrator to make it"
	change := func(name, body string) error {
		return mallory.Patch(ctx, target(fleetVersion, "BundleNamespaceMapping", namespace, name), mergePatch(body))
	}
	// A tenant opens no namespace to others, but may label and delete an existing mapping.
	g.Eventually(func(g Gomega) { isForbidden(g, mallory.Create(ctx, toEverybody("new"), client.DryRunAll), refusal) }).Should(Succeed())
	isForbidden(g, change("closed", `{"namespaceSelector":{}}`), refusal)
	isForbidden(g, change("open", `{"bundleSelector":{"matchLabels":{"a":"b"}}}`), refusal)
	g.Expect(change("open", entry("labels", "a", `"b"`))).To(Succeed())
	g.Expect(mallory.Delete(ctx, toEverybody("open"))).To(Succeed())
	// The syncer creates its mappings, and an administrator may create any.
	s.imported(g, "one")
	appears(g, s.mapping())
	create(g, toEverybody("new"))
}
