package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// TestUpgrade upgrades Muster and rolls it back while the real Fleet runs: Fleet must not deploy anything again.
// Bundles are targeted through every object that Muster makes, and one reads template values.
func TestUpgrade(t *testing.T) {
	if earlier == nil {
		t.Fatalf("there is nothing to upgrade from: name a revision in %s", fixture.EarlierVariable)
	}
	g := NewWithT(t)
	namespaces(g, "team")
	inMemoryClass(g, classNamespace)
	bundles(g, classNamespace, "any", "{clusterSelector: {}}")
	bundles(g, classNamespace, "by-group", "{clusterGroup: "+group+"}")
	bundles(g, classNamespace, "values", "{clusterGroup: "+group+", helm: {values: {cidrs: "+cidrs+", version: '${ .ClusterValues.ControlPlane.spec.version }'}}}")
	bundles(g, "team", "by-name", "{clusterName: one}")
	keys := []types.NamespacedName{{Namespace: "team", Name: "one"}, {Namespace: classNamespace, Name: "beside"}}
	for i, key := range keys {
		cluster := stack.TopologyCluster{Namespace: key.Namespace, Name: key.Name, ClassNamespace: classNamespace, PodCIDR: fmt.Sprintf("10.%d.0.0/16", i+1)}
		kubectlApply(g, cluster.YAML())
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
		{"rolled back", earlier.Manifests, earlier.Binaries},
		{name: "upgraded again"},
	} {
		g.Expect(env.UseMuster(ctx, step.manifests, step.binaries)).To(Succeed())
		// The CRD keeps its version, and needs no conversion.
		crd := kubectl(g, "get", "crd", "fleetaddonconfigs.addons.cluster.x-k8s.io", "-o", "jsonpath={.spec.versions[*].name} {.status.storedVersions[*]} {.spec.conversion.strategy}")
		g.Expect(crd).To(Equal("v1alpha1 v1alpha1 None"))
		// Webhook and syncer restart in either order, so different versions run together for a while.
		processes := []string{"muster-webhook", syncerProcess}
		if i%2 == 1 {
			slices.Reverse(processes)
		}
		for _, process := range processes {
			g.Expect(env.Restart(ctx, process)).To(Succeed())
			observe(g, keys, fmt.Sprintf("%d-%s", i, process))
		}
		g.Consistently(func(g Gomega) { g.Expect(deployed(g, keys)).To(Equal(before), step.name) }).WithTimeout(8 * time.Second).Should(Succeed())
		t.Logf("%s: nothing was deployed again", step.name)
	}
}

// observe labels each Cluster, and waits until the Fleet Cluster has the label: the syncer has reconciled all of
// them.
func observe(g Gomega, keys []types.NamespacedName, value string) {
	for _, key := range keys {
		g.Expect(admin.Patch(ctx, getCluster(g, key), mergePatch(fmt.Sprintf(`{"metadata":{"labels":{"look":%q}}}`, value)))).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, key).Labels).To(HaveKeyWithValue("look", value))
		}).WithTimeout(soon).Should(Succeed())
	}
}

// deployed returns the UIDs of Fleet's objects for the clusters, and the deployed version of each bundle, including
// Fleet's agent.
func deployed(g Gomega, keys []types.NamespacedName) map[string]string {
	all := map[string]string{}
	for _, key := range keys {
		var deployments fleetv1.BundleDeploymentList
		g.Expect(admin.List(ctx, &deployments, client.InNamespace(fleetNamespace(g, key)))).To(Succeed())
		for _, one := range deployments.Items {
			all["BundleDeployment "+one.Namespace+"/"+one.Name] = string(one.UID) + " " + one.Spec.DeploymentID
		}
		for _, kind := range []string{"Cluster", "ClusterGroup", "BundleNamespaceMapping"} {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind(kind + "List"))
			g.Expect(admin.List(ctx, list, client.InNamespace(key.Namespace))).To(Succeed())
			for _, one := range list.Items {
				all[kind+" "+one.Namespace+"/"+one.Name] = string(one.UID)
			}
		}
	}
	return all
}
