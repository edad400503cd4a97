package rancher

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// inTime is how long Fleet may take to deploy through a mapping that begins to map.
const inTime = 20 * time.Second

// deployedTo returns the Bundles of a namespace that Fleet deploys to a Cluster.
func deployedTo(g Gomega, from string, fleet *fleetv1.Cluster) (names []string) {
	g.Expect(fleet.Status.Namespace).NotTo(BeEmpty())
	var list fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &list, client.InNamespace(fleet.Status.Namespace), client.MatchingLabels{fleetv1.BundleNamespaceLabel: from})).To(Succeed())
	for i := range list.Items {
		names = append(names, list.Items[i].Labels[fleetv1.BundleLabel])
	}
	return names
}

// Fleet's own controller uninstalls the Bundles of a class's namespace when somebody deletes the mapping. When the
// syncer has made it again, they come back, also where the Cluster is deselected or of no class.
func TestBundlesComeBackWithTheirMapping(t *testing.T) {
	g := NewWithT(t)
	classes, team := newNamespace(g, "classes", nil), newNamespace(g, "team", nil)
	g.Expect(admin.Create(ctx, fixture.Class(classes, "std", nil))).To(Succeed())
	t.Cleanup(func() { g.Expect(client.IgnoreNotFound(admin.Delete(ctx, fixture.Config()))).To(Succeed()) })
	g.Expect(env.Apply(ctx, `{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {cluster: {selector: {matchExpressions: [{key: leave, operator: DoesNotExist}]}}}}`)).To(Succeed())
	one, left, plain := newCluster(g, team, "one", "std", classes, nil), newCluster(g, team, "left", "std", classes, nil), newCluster(g, team, "plain", "", "", nil)
	all := []*clusterv1.Cluster{one, left, plain}
	for _, cluster := range all {
		willReport(g, cluster, "True Imported")
	}
	patch(g, left, `{"metadata":{"labels":{"leave":"yes"}}}`)
	willReport(g, left, "True Deselected")
	// Each has a Bundle of its own: to Fleet, one look at a Bundle is for all its clusters.
	for _, cluster := range all {
		g.Expect(env.Apply(ctx, fixture.DataBundle(classes, "for-"+cluster.Name, "[{clusterName: "+cluster.Name+"}]", "{from: here}"))).To(Succeed())
	}
	deployed := func(g Gomega) (names []string) {
		for _, cluster := range all {
			names = append(names, deployedTo(g, classes, ownFleetCluster(g, cluster))...)
		}
		return names
	}
	areDeployed := ConsistOf("for-one", "for-left", "for-plain")
	g.Eventually(deployed).Should(areDeployed)

	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed())
	t.Cleanup(func() { g.Expect(env.Start(ctx, syncerProcess)).To(Succeed()) })
	_, err := env.Kubectl(ctx, "delete", "bundlenamespacemapping", team, "--namespace="+classes)
	g.Expect(err).NotTo(HaveOccurred())
	for _, cluster := range all {
		patch(g, &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: classes, Name: "for-" + cluster.Name}}, `{"metadata":{"annotations":{"seen":"again"}}}`)
	}
	g.Eventually(deployed).Should(BeEmpty())
	g.Expect(env.Start(ctx, syncerProcess)).To(Succeed())
	mapping := &fleetv1.BundleNamespaceMapping{}
	g.Eventually(func() error {
		return admin.Get(ctx, types.NamespacedName{Namespace: classes, Name: team}, mapping)
	}).Should(Succeed())
	g.Eventually(deployed).WithTimeout(inTime).Should(areDeployed)

	// Fleet deploys no agent again: the changed annotation is not an input of it.
	fleet := ownFleetCluster(g, left)
	g.Expect(fleet.Annotations).To(HaveKeyWithValue(domain+"/retarget", HavePrefix(fmt.Sprintf("%s.1", mapping.UID))))
	g.Eventually(func(g Gomega) {
		g.Expect(ownFleetCluster(g, left).Annotations).To(HaveKeyWithValue(domain+"/retarget", fmt.Sprintf("%s.1.again", mapping.UID)))
	}).Should(Succeed())
	g.Consistently(deployed).Should(areDeployed)
	now := ownFleetCluster(g, left)
	g.Expect(now.Spec).To(Equal(fleet.Spec))
	g.Expect(now.Status.AgentConfigChanged).To(Equal(fleet.Status.AgentConfigChanged))
	g.Expect(now.Status.AgentDeployedGeneration).To(Equal(fleet.Status.AgentDeployedGeneration))
}
