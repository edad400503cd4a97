package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// caapf applies an object as CAAPF did: server-side, under one of its field managers.
func caapf(g Gomega, manager, text string) {
	object := object(g, text)
	g.Expect(admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager), client.ForceOwnership)).To(Succeed())
}

// What CAAPF leaves on a cluster is adopted in place: same objects, without the
// finalizers, managers and owner references that made trouble.
func TestMigrationFromCAAPF(t *testing.T) {
	g := NewWithT(t)
	startSyncer := stop(t, g, syncerProcess)
	classNamespace, namespace := newNamespace(t, g, "classes", nil), newNamespace(t, g, "team", nil)
	class := newClass(g, classNamespace, "standard", map[string]string{"tier": "gold"})

	var clusters []*clusterv1.Cluster
	for _, name := range []string{"one", "two"} {
		cluster := fixture.Cluster(namespace, name, "standard", classNamespace)
		cluster.Labels = map[string]string{"env": "prod"}
		cluster.Finalizers = []string{stamp.LegacyFinalizer}
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		initialize(g, cluster)
		unstamp(t, g, cluster)
		clusters = append(clusters, cluster)
		leaveCAAPFObjects(g, cluster, classNamespace)
	}
	before := class.DeepCopy()
	class.Finalizers = []string{stamp.LegacyFinalizer}
	g.Expect(admin.Patch(ctx, class, client.MergeFrom(before))).To(Succeed())
	uids := uidsOf(g, classNamespace, namespace)

	startSyncer()
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: "capi-"}}})

	g.Eventually(func(g Gomega) {
		for _, cluster := range clusters {
			current := get(g, &clusterv1.Cluster{}, namespace, cluster.Name)
			g.Expect(current.Finalizers).NotTo(ContainElement(stamp.LegacyFinalizer))
			g.Expect(stamp.PinOf(current.Annotations).ClusterName).To(Equal("capi-" + cluster.Name))
			imported := fleetCluster(g, namespace, "capi-"+cluster.Name)
			g.Expect(imported.Labels).To(And(HaveKeyWithValue("tier", "gold"), HaveKeyWithValue("env", "prod"), Not(HaveKey("stale"))))
			g.Expect(imported.OwnerReferences).To(HaveLen(1))
			g.Expect(imported.Spec.TemplateValues.Data).To(HaveKey("InfrastructureCluster"))
		}
		g.Expect(get(g, &clusterv1.ClusterClass{}, classNamespace, "standard").Finalizers).To(BeEmpty())
		for _, shared := range []client.Object{
			&fleetv1.ClusterGroup{}, &fleetv1.BundleNamespaceMapping{},
		} {
			key := types.NamespacedName{Namespace: namespace, Name: "standard." + classNamespace}
			if _, mapping := shared.(*fleetv1.BundleNamespaceMapping); mapping {
				key = types.NamespacedName{Namespace: classNamespace, Name: namespace}
			}
			g.Expect(admin.Get(ctx, key, shared)).To(Succeed())
			g.Expect(shared.GetOwnerReferences()).To(BeEmpty())
			for _, entry := range shared.GetManagedFields() {
				g.Expect(entry.Manager).NotTo(HaveSuffix("-addon-provider-fleet"), "on %T", shared)
			}
		}
	}).Should(Succeed())
	g.Expect(uidsOf(g, classNamespace, namespace)).To(Equal(uids))

	t.Run("and everything goes with its last user", func(t *testing.T) {
		g := NewWithT(t)
		deleteNow(g, clusters[0], clusters[1], class)
		g.Eventually(func(g Gomega) {
			var groups fleetv1.ClusterGroupList
			g.Expect(admin.List(ctx, &groups, client.InNamespace(namespace))).To(Succeed())
			g.Expect(groups.Items).To(BeEmpty())
			g.Expect(get(g, &corev1.Namespace{}, "", namespace).Annotations).To(BeEmpty())
		}).Should(Succeed())
	})
}

// unstamp takes off Clusters what the webhook put on them, as if they were from before.
func unstamp(t *testing.T, g Gomega, clusters ...*clusterv1.Cluster) {
	t.Helper()
	defer stop(t, g, webhookProcess)()
	for _, cluster := range clusters {
		before := cluster.DeepCopy()
		delete(cluster.Annotations, stamp.OwnedByAnnotation)
		delete(cluster.Annotations, stamp.ClusterNameAnnotation)
		delete(cluster.Labels, stamp.ClassNameLabel)
		delete(cluster.Labels, stamp.ClassNamespaceLabel)
		g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
		g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{}))
	}
}

// leaveCAAPFObjects makes what CAAPF makes of a Cluster, with a naming prefix.
func leaveCAAPFObjects(g Gomega, cluster *clusterv1.Cluster, classNamespace string) {
	owner := fmt.Sprintf("[{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, name: %s, uid: %s}]", cluster.Name, cluster.UID)
	classLabels := fmt.Sprintf("%s: standard, %s: %s", stamp.ClassNameLabel, stamp.ClassNamespaceLabel, classNamespace)
	perCluster := "cluster-capi-" + cluster.Name + "-addon-provider-fleet"
	caapf(g, "addon-provider-fleet", fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %s, name: capi-%s, labels: {%s, env: prod, stale: label}, ownerReferences: %s}
spec:
  kubeConfigSecret: %s-kubeconfig
  agentNamespace: fleet-addon-agent
  hostNetwork: true
  templateValues: {Cluster: {apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster}, ControlPlane: {spec: {kubeadmConfigSpec: {files: [{content: hunter2}]}}}}
`, cluster.Namespace, cluster.Name, classLabels, owner, cluster.Name))
	caapf(g, perCluster, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: ClusterGroup
metadata: {namespace: %s, name: standard.%s, labels: {%s}, ownerReferences: %s}
spec: {selector: {matchLabels: {%s}}}
`, cluster.Namespace, classNamespace, classLabels, owner, classLabels))
	caapf(g, perCluster, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: BundleNamespaceMapping
metadata: {namespace: %s, name: %s}
bundleSelector: {}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
`, classNamespace, cluster.Namespace, cluster.Namespace))
	caapf(g, "namespace-addon-provider-fleet", fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s, annotations: {field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace: "true"}}
`, cluster.Namespace))
}

// uidsOf returns the UIDs of the Fleet objects of namespaces.
func uidsOf(g Gomega, classNamespace, namespace string) map[string]types.UID {
	uids := map[string]types.UID{}
	for _, object := range []struct{ kind, namespace, name string }{
		{"Cluster", namespace, "capi-one"}, {"Cluster", namespace, "capi-two"},
		{"ClusterGroup", namespace, "standard." + classNamespace}, {"BundleNamespaceMapping", classNamespace, namespace},
	} {
		found := &unstructured.Unstructured{}
		found.SetAPIVersion("fleet.cattle.io/v1alpha1")
		found.SetKind(object.kind)
		uids[object.kind+"/"+object.name] = get(g, found, object.namespace, object.name).GetUID()
	}
	return uids
}

// Muster can be taken away under everything that it imported: nothing waits for it. It
// leaves nothing behind to test, and has a stack of its own.
func TestUninstall(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	g.Expect(admin.Create(ctx, fixture.Config())).To(Succeed())
	s := newScene(t, g)
	s.imported(g, "one")
	s.imported(g, "two")
	paused := s.imported(g, "paused")
	g.Expect(admin.Patch(ctx, paused, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedCondition(g, paused).Reason).To(Equal("Paused")) }).Should(Succeed())
	newClass(g, s.namespace, "own", nil)
	for name, class := range map[string]string{"three": "own", "waiting": "none"} {
		g.Expect(admin.Create(ctx, fixture.Cluster(s.namespace, name, class, ""))).To(Succeed())
	}
	initialize(g, get(g, &clusterv1.Cluster{}, s.namespace, "three"))
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "three") }).Should(Succeed())

	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed())
	g.Expect(env.Stop(ctx, webhookProcess)).To(Succeed())
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	crd.SetName("fleetaddonconfigs.addons.cluster.x-k8s.io")
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "muster-system"}},
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "muster-mutating-webhook"}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "muster-validating-webhook"}},
		crd,
	} {
		g.Expect(admin.Delete(ctx, object)).To(Succeed())
	}

	var clusters clusterv1.ClusterList
	g.Expect(admin.List(ctx, &clusters)).To(Succeed())
	g.Expect(clusters.Items).To(HaveLen(5))
	for i := range clusters.Items {
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, &clusters.Items[i]))).To(Succeed())
	}
	var classes clusterv1.ClusterClassList
	g.Expect(admin.List(ctx, &classes)).To(Succeed())
	for i := range classes.Items {
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, &classes.Items[i]))).To(Succeed())
	}
	var namespaces corev1.NamespaceList
	g.Expect(admin.List(ctx, &namespaces)).To(Succeed())
	var ours []client.Object
	for i := range namespaces.Items {
		switch namespaces.Items[i].Name {
		case "default", "kube-system", "kube-public", "kube-node-lease":
			continue
		}
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, &namespaces.Items[i]))).To(Succeed())
		ours = append(ours, &namespaces.Items[i])
	}
	begin := time.Now()
	g.Eventually(func(g Gomega) {
		g.Expect(admin.List(ctx, &clusters)).To(Succeed())
		g.Expect(clusters.Items).To(BeEmpty())
		g.Expect(admin.List(ctx, &classes)).To(Succeed())
		g.Expect(classes.Items).To(BeEmpty())
		for _, namespace := range ours {
			err := admin.Get(ctx, client.ObjectKeyFromObject(namespace), namespace.DeepCopyObject().(client.Object))
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "namespace %s: %v", namespace.GetName(), err)
		}
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	t.Logf("%d namespaces were gone after %s", len(ours), time.Since(begin).Round(100*time.Millisecond))
}
