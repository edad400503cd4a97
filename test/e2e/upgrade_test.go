package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

// TestUpgrade lets the real Fleet look on while Muster is upgraded and rolled back: nothing
// is deployed again. Bundles are targeted through everything that Muster makes, and one reads
// template values.
func TestUpgrade(t *testing.T) {
	if former == nil {
		t.Fatalf("there is nothing to upgrade from: name a revision in %s", formerVariable)
	}
	g := NewWithT(t)
	for _, namespace := range []string{classNamespace, "team"} {
		g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	}
	class, err := env.InMemoryClusterClass(classNamespace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, class)).To(Succeed())
	g.Expect(env.WaitForClusterClass(ctx, classNamespace, stack.InMemoryClass)).To(Succeed())
	bundles(g, classNamespace, "any", "clusterSelector: {}")
	bundles(g, classNamespace, "by-group", "clusterGroup: "+group)
	bundles(g, classNamespace, "values", "clusterGroup: "+group+"\n    helm: {values: {cidrs: '${ .ClusterValues.Cluster.spec.clusterNetwork.pods.cidrBlocks }', version: '${ .ClusterValues.ControlPlane.spec.version }'}}")
	bundles(g, "team", "by-name", "clusterName: one")
	keys := []types.NamespacedName{{Namespace: "team", Name: "one"}, {Namespace: classNamespace, Name: "beside"}}
	for i, key := range keys {
		cluster := stack.TopologyCluster{Namespace: key.Namespace, Name: key.Name, ClassNamespace: classNamespace, PodCIDR: fmt.Sprintf("10.%d.0.0/16", i+1)}
		_, err := env.KubectlInput(ctx, cluster.YAML(), "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	for _, key := range keys {
		waitImported(t, g, key)
	}
	var before map[string]string
	g.Eventually(func(g Gomega) {
		g.Expect(deployments(g, keys[0])).To(ContainElements(classNamespace+"/any", classNamespace+"/by-group", classNamespace+"/values", "team/by-name"))
		now := deployed(g, keys)
		defer func() { before = now }()
		g.Expect(now).To(Equal(before), "Fleet is not at rest")
	}).WithTimeout(soon).WithPolling(3 * time.Second).Should(Succeed())
	t.Logf("%d objects have to stay: %v", len(before), before)

	for i, step := range []struct {
		name, manifests string
		binaries        map[string]string
	}{
		{name: "upgraded"},
		{"rolled back", former.manifests, former.binaries},
		{name: "upgraded again"},
	} {
		g.Expect(env.UseMuster(ctx, step.manifests, step.binaries)).To(Succeed())
		// The CRD keeps its version, and needs no conversion.
		crd, err := env.Kubectl(ctx, "get", "crd", "fleetaddonconfigs.addons.cluster.x-k8s.io", "-o", "jsonpath={.spec.versions[*].name} {.status.storedVersions[*]} {.spec.conversion.strategy}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(crd).To(Equal("v1alpha1 v1alpha1 None"))
		// Webhook and syncer are replaced in either order, and work side by side meanwhile.
		processes := []string{"muster-webhook", syncerProcess}
		if i%2 == 1 {
			slices.Reverse(processes)
		}
		for _, process := range processes {
			g.Expect(env.Restart(ctx, process)).To(Succeed())
			look(g, keys, fmt.Sprintf("%d-%s", i, process))
		}
		g.Consistently(func(g Gomega) { g.Expect(deployed(g, keys)).To(Equal(before), step.name) }).WithTimeout(8 * time.Second).Should(Succeed())
		t.Logf("%s: nothing was deployed again", step.name)
	}
}

// look labels each Cluster, and waits until Fleet has the label: the syncer has reconciled
// all of them.
func look(g Gomega, keys []types.NamespacedName, value string) {
	for _, key := range keys {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"look":%q}}}`, value)
		g.Expect(admin.Patch(ctx, getCluster(g, key), client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
		g.Eventually(func(g Gomega) {
			var imported fleetv1.Cluster
			g.Expect(admin.Get(ctx, key, &imported)).To(Succeed())
			g.Expect(imported.Labels).To(HaveKeyWithValue("look", value))
		}).WithTimeout(soon).Should(Succeed())
	}
}

// deployed returns what Fleet has of the clusters and deploys to them: every object by its
// UID, and what is deployed in which version, Fleet's agent included.
func deployed(g Gomega, keys []types.NamespacedName) map[string]string {
	all := map[string]string{}
	note := func(kind string, object client.Object, more string) {
		all[kind+" "+client.ObjectKeyFromObject(object).String()] = string(object.GetUID()) + more
	}
	for _, key := range keys {
		var cluster fleetv1.Cluster
		g.Expect(admin.Get(ctx, key, &cluster)).To(Succeed())
		note("Cluster", &cluster, "")
		var bundleDeployments fleetv1.BundleDeploymentList
		g.Expect(admin.List(ctx, &bundleDeployments, client.InNamespace(fleetNamespace(g, key)))).To(Succeed())
		for i := range bundleDeployments.Items {
			note("BundleDeployment", &bundleDeployments.Items[i], " "+bundleDeployments.Items[i].Spec.DeploymentID)
		}
		var groups fleetv1.ClusterGroupList
		g.Expect(admin.List(ctx, &groups, client.InNamespace(key.Namespace))).To(Succeed())
		for i := range groups.Items {
			note("ClusterGroup", &groups.Items[i], "")
		}
		var mappings fleetv1.BundleNamespaceMappingList
		g.Expect(admin.List(ctx, &mappings, client.InNamespace(key.Namespace))).To(Succeed())
		for i := range mappings.Items {
			note("BundleNamespaceMapping", &mappings.Items[i], "")
		}
	}
	return all
}
