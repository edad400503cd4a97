package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack/parts"
)

// many returns this number of keys, as short as they can be: the API server accepts 256 KiB of annotations.
func many(count int) map[string]string {
	result := map[string]string{}
	for i := range count {
		result["k"+strconv.FormatInt(int64(i), 36)] = ""
	}
	return result
}

// withAllPolicies gives a test a stack of its own on which every shipped policy is bound.
func withAllPolicies(t *testing.T, g Gomega) {
	t.Helper()
	ownStack(t, g)
	for _, namespace := range []string{"cattle-fleet-system", "cattle-fleet-clusters-system"} {
		create(g, named(&corev1.Namespace{}, "", namespace))
	}
	applyAllComponents(g)
}

// applyAllComponents applies all that is optional and that the API server can have.
func applyAllComponents(g Gomega) {
	components := []string{"helm", "registrar", "installer", "mapping-authors"}
	if parts.Chosen.HasMutatingPolicies() {
		components = append(components, "class-labels")
	}
	for _, component := range components {
		_, err := env.Kubectl(ctx, "apply", "--server-side", "-k", "../../manifests/"+component)
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// Whatever a tenant lengthens, the policies neither refuse what Muster must write to it, nor cost more than the write.
func TestSizesThatPoliciesMeet(t *testing.T) {
	g := NewWithT(t)
	withAllPolicies(t, g)
	s := newScene(t, g)

	t.Run("a Cluster whose Fleet Cluster has many annotations", func(t *testing.T) {
		g := NewWithT(t)
		cluster := s.holds(g, "one", "30m")
		addOn := addOn(g, cluster, "cni")
		fleet := fleetCluster(g, s.namespace, "one")
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": many(20_000)}})
		g.Expect(err).NotTo(HaveOccurred())
		patch(g, fleet, string(body))

		patch(g, cluster, `{"spec":{"paused":true}}`)
		g.Eventually(func(g Gomega) {
			released := fleetCluster(g, s.namespace, "one")
			g.Expect(released.OwnerReferences).To(BeEmpty())
			g.Expect(released.Annotations).To(HaveKeyWithValue(stamp.ReleasedAnnotation, "true"))
			g.Expect(len(released.Annotations)).To(BeNumerically(">", 20_000))
		}).Should(Succeed())
		patch(g, cluster, `{"spec":{"paused":false}}`)
		g.Eventually(func(g Gomega) {
			reclaimed := fleetCluster(g, s.namespace, "one")
			g.Expect(reclaimed.OwnerReferences).To(ContainElement(HaveField("UID", cluster.UID)))
			g.Expect(reclaimed.Annotations).NotTo(HaveKey(stamp.ReleasedAnnotation))
		}).Should(Succeed())
		patch(g, cluster, entry("labels", "late", `"yes"`))
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(HaveKeyWithValue("late", "yes"))
		}).Should(Succeed())

		time.Sleep(1100 * time.Millisecond) // Times of changes have whole seconds: the add-on is older than the version.
		g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
		deploy(g, addOn, "2")
		reportsApplied(g, addOn, true)
		g.Eventually(func(g Gomega) { isFree(g, cluster) }).Should(Succeed())
		g.Expect(admin.Delete(ctx, cluster)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(client.IgnoreNotFound(admin.Get(ctx, client.ObjectKeyFromObject(fleet), fleet))).To(Succeed())
			g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(fleet), &fleetv1.Cluster{})).NotTo(Succeed())
		}).Should(Succeed())
	})

	for _, process := range []string{syncerProcess, webhookProcess} { // Both would read and change what this test makes.
		g.Expect(env.Stop(ctx, process)).To(Succeed())
	}
	for _, test := range costs(g, s) {
		t.Run(test.name, func(t *testing.T) { test.compare(t, NewWithT(t)) })
	}
}

// costly is a write of one of Muster's accounts, compared with the same write of an administrator.
type costly struct {
	name, account string
	object        *unstructured.Unstructured
	do, refused   string
}

// compare makes the object, and compares the API server's processor time.
func (c costly) compare(t *testing.T, g Gomega) {
	const times = 2
	create(g, c.object.DeepCopy())
	deed := fixture.Deed{Object: target(c.object.GetAPIVersion(), c.object.GetKind(), c.object.GetNamespace(), c.object.GetName()), Do: c.do}
	try := func(by client.Client) error {
		if body, isAttachment := strings.CutPrefix(c.do, "attach "); isAttachment {
			attachment := object(g, body)
			attachment.SetNamespace(c.object.GetNamespace())
			return by.Apply(ctx, client.ApplyConfigurationFromUnstructured(attachment), client.DryRunAll, client.FieldOwner("muster-attach"))
		}
		return deed.Try(ctx, by)
	}
	account := accountClient(g, "muster-system", c.account)
	var its, administrators time.Duration
	for range times {
		before := processorTime(g)
		g.Expect(try(admin)).To(Succeed())
		between := processorTime(g)
		err := try(account)
		its, administrators = its+processorTime(g)-between, administrators+between-before
		if c.refused == "" {
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			g.Expect(err).To(MatchError(ContainSubstring(c.refused)))
		}
	}
	t.Logf("%s a write, the administrator's %s", (its / times).Round(time.Millisecond), (administrators / times).Round(time.Millisecond))
	// A walk takes 12 s. What else the API server does meanwhile may take some time.
	g.Expect(its).To(BeNumerically("<=", 2*administrators+times*500*time.Millisecond))
}

// processorTime returns how much processor time the API server has used.
func processorTime(g Gomega) time.Duration {
	for _, process := range env.Processes() {
		if process.Name == "kube-apiserver" {
			content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(process.PID), "stat"))
			g.Expect(err).NotTo(HaveOccurred())
			fields := strings.Fields(string(content[strings.LastIndex(string(content), ")")+1:]))
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			return time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	g.Expect("kube-apiserver").To(BeElementOf("the processes of the stack"))
	return 0
}

func costs(g Gomega, s scene) []costly {
	const (
		helm, registrar = "muster-helm", "muster-registrar"
		owned           = `{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/owned-by":"x"}}}`
		foreign         = `{"metadata":{"annotations":{"x":"y"}}}`
		chart           = `{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/chart":"x"}}}`
		released        = `{"metadata":{"ownerReferences":[],"annotations":{"fleet.addons.cluster.x-k8s.io/released":"true"}}}`
		values          = `{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/helmchartproxy":"x"}}}`
		retarget        = `{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/retarget":"x"}}}`
		workspaces      = `{"metadata":{"annotations":{"field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace":"true"}}}`
	)
	helms := map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, stamp.HelmChartProxyLabel: "one"}
	made := func(apiVersion, kind, name string, labels map[string]string, change func(its *unstructured.Unstructured)) *unstructured.Unstructured {
		its := target(apiVersion, kind, s.namespace, name)
		if kind == "Namespace" || kind == "ClusterClass" {
			its.SetNamespace(map[string]string{"ClusterClass": s.classNamespace}[kind])
		}
		its.SetLabels(labels)
		change(its)
		return its
	}
	annotated := func(its *unstructured.Unstructured) { its.SetAnnotations(many(40_000)) }
	labelled := func(its *unstructured.Unstructured) {
		all := many(40_000)
		maps.Copy(all, its.GetLabels())
		its.SetLabels(all)
	}
	owners := func(its *unstructured.Unstructured) {
		var all []metav1.OwnerReference
		for i := range 10_000 {
			all = append(all, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "x", UID: types.UID(strconv.Itoa(i))})
		}
		its.SetOwnerReferences(all)
		its.SetManagedFields([]metav1.ManagedFieldsEntry{{}}) // Their own names would take more room than etcd has.
	}
	managers := func(its *unstructured.Unstructured) {
		var all []metav1.ManagedFieldsEntry
		for i := range 1000 {
			all = append(all, metav1.ManagedFieldsEntry{Manager: fmt.Sprintf("m%d", i), Operation: metav1.ManagedFieldsOperationApply,
				APIVersion: its.GetAPIVersion(), FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{"f:a":{}}}}`)}})
		}
		its.SetManagedFields(all)
	}
	cluster := func(name string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		return made(capiVersion, "Cluster", name, nil, func(its *unstructured.Unstructured) {
			its.Object["spec"] = map[string]any{"paused": true}
			change(its)
		})
	}
	ours := map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}
	fleet := func(name string, labels map[string]string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		return made(fleetVersion, "Cluster", name, labels, change)
	}
	bundle := func(name string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		return made(fleetVersion, "Bundle", "hcp-"+name, helms, change)
	}
	targets := func(its *unstructured.Unstructured) {
		var all []any
		for i := range 20_000 {
			all = append(all, map[string]any{"clusterName": strconv.Itoa(i)})
		}
		its.Object["spec"] = map[string]any{"targets": all}
	}
	class, err := runtime.DefaultUnstructuredConverter.ToUnstructured(fixture.Class("", "", nil))
	g.Expect(err).NotTo(HaveOccurred())
	return []costly{
		{"a Cluster with many annotations is stamped", syncerProcess, cluster("annotated", annotated), owned, ""},
		{"a Cluster with many annotations gets another", syncerProcess, cluster("more", annotated), foreign, "more than 1100: 40001"},
		{"a Cluster with many labels is stamped", syncerProcess, cluster("labelled", labelled), owned, ""},
		{"a Cluster with many owners is stamped", syncerProcess, cluster("owned", owners), owned, ""},
		{"a Cluster with many managers is stamped", syncerProcess, cluster("managed", managers), owned, ""},
		{"a Cluster with many annotations gets a condition", syncerProcess, cluster("reported", annotated),
			`status {"status":{"conditions":[{"type":"FleetImported","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, ""},
		{"a Fleet Cluster with many annotations is released", syncerProcess, fleet("annotated", ours, annotated), released, ""},
		{"a Fleet Cluster with many labels is released", syncerProcess, fleet("labelled", ours, labelled), released, ""},
		{"a Fleet Cluster with many owners is released", syncerProcess, fleet("owned", ours, owners), released, ""},
		{"a Fleet Cluster with many managers is released", syncerProcess, fleet("managed", ours, managers), released, ""},
		{"a Fleet Cluster with many annotations is deleted", syncerProcess, fleet("deleted", ours, annotated), "delete", ""},
		{"a Fleet Cluster of Rancher with many managers gets values", syncerProcess,
			fleet("rancher", map[string]string{stamp.RancherClusterLabel: "c-1"}, managers),
			`attach {apiVersion: fleet.cattle.io/v1alpha1, kind: Cluster, metadata: {name: rancher}, spec: {templateValues: {a: b}}}`, ""},
		{"a Fleet Cluster that nothing shows to be Muster's", syncerProcess, fleet("foreign", nil, owners), released, "not Muster's"},
		{"a ClusterClass with many annotations gets another", syncerProcess, made(capiVersion, "ClusterClass", "annotated", nil, func(its *unstructured.Unstructured) {
			its.Object["spec"] = class["spec"]
			annotated(its)
		}), foreign, "more than 1100: 40001"},
		{"a Namespace with many annotations is annotated", syncerProcess, made("v1", "Namespace", "annotated", nil, annotated), workspaces, ""},
		{"a Bundle with many annotations is retargeted", syncerProcess, bundle("retargeted", annotated), retarget, ""},
		{"a Bundle with many annotations is written", helm, bundle("annotated", annotated), chart, ""},
		{"a Bundle with many targets is written", helm, bundle("targets", targets), chart, ""},
		{"a Bundle with many labels is deleted", helm, bundle("labelled", labelled), "delete", ""},
		{"a ConfigMap with many annotations is written", helm, made("v1", "ConfigMap", "hcp-one.for.one", helms, annotated), values, ""},
		{"a ConfigMap with many owners is written", helm, made("v1", "ConfigMap", "hcp-one.for.two", helms, owners), values, ""},
	}
}
