package rancher

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
	"github.com/muster-fleet/muster/test/stack"
)

// TestHandOver follows docs/rancher.md with real agents on a real API server: a Cluster that Muster has imported goes
// over to Rancher, and back. The object that a Bundle deploys there is never deleted.
func TestHandOver(t *testing.T) {
	g := NewWithT(t)
	kubeconfig, err := env.StartDownstream(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	g.Expect(admin.Create(ctx, fixture.Class(namespace, "std", nil))).To(Succeed())
	g.Expect(env.Apply(ctx, fixture.KubeconfigSecret(namespace, "one", kubeconfig))).To(Succeed())
	cluster := newCluster(g, namespace, "one", "std", "", nil)
	willReport(g, cluster, "True Imported")
	g.Expect(env.Apply(ctx, fixture.DataBundle(namespace, "app", "[{clusterGroup: std}]", "{from: team}"))).To(Succeed())
	g.Expect(env.StartAgent(ctx, stack.DefaultAgentNamespace)).To(Succeed())
	object := func(field string) func() (string, error) {
		return func() (string, error) {
			return env.DownstreamKubectl(ctx, "get", "configmap", "app", "--namespace=default", "--ignore-not-found", "--output=jsonpath={"+field+"}")
		}
	}
	g.Eventually(object(".data.from")).Should(Equal("team"))
	uid, err := object(".metadata.uid")()
	g.Expect(err).NotTo(HaveOccurred())
	// keeps sets keepResources in a Bundle, and waits until Fleet has passed it on.
	keeps := func(namespace string) {
		patch(g, &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "app"}}, `{"spec":{"keepResources":true}}`)
		g.Eventually(func(g Gomega) {
			g.Expect(deployments(g, namespace)).To(HaveEach(HaveField("Spec.Options.KeepResources", true)))
		}).Should(Succeed())
	}

	// Rancher imports the cluster as well.
	patch(g, cluster, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, player.AutoImport))
	d := turtlesImports(g, cluster, nil)
	d.Runs = true
	d.assignsWorkspace(g, workspace)
	d.provisions(g)
	g.Expect(env.Apply(ctx, fixture.KubeconfigSecret(workspace, d.Provisioning.GetName(), kubeconfig))).To(Succeed())
	d.becomesReady(g)
	d.applies(g)
	willReport(g, cluster, "True DoubleImport", d.Key().String())
	g.Expect(env.StartAgent(ctx, "cattle-fleet-system")).To(Succeed())

	keeps(namespace)
	g.Expect(env.Apply(ctx, fixture.DataBundle(workspace, "app", "[{clusterGroup: std."+namespace+"}]", "{from: workspace}"))).To(Succeed())
	g.Expect(admin.Delete(ctx, ownFleetCluster(g, cluster))).To(Succeed())
	willReport(g, cluster, "True Attached", d.Key().String())
	g.Eventually(func(g Gomega) { g.Expect(deployments(g, namespace)).To(BeEmpty()) }).Should(Succeed())
	g.Eventually(object(".data.from")).Should(Equal("workspace"))
	g.Expect(object(".metadata.uid")()).To(Equal(uid))

	// And back. Rancher deletes its Fleet Cluster, and with that goes what Fleet has deployed through it.
	keeps(workspace)
	patch(g, cluster, fmt.Sprintf(`{"metadata":{"labels":{%q:"false"}}}`, player.AutoImport))
	goes(g, d.Management)
	goes(g, d.Provisioning)
	g.Expect(admin.Delete(ctx, d.fleet(g))).To(Succeed())
	willReport(g, cluster, "True Imported")
	g.Expect(isGone(d.FleetCluster())()).To(BeTrue())
	g.Eventually(object(".data.from")).Should(Equal("team"))
	g.Expect(object(".metadata.uid")()).To(Equal(uid))
	deleted, err := env.DownstreamAuditLog(stack.AuditFilter{Where: func(event stack.AuditEvent) bool {
		return event.Verb == "delete" && event.Resource == "configmaps" && event.Name == "app"
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(deleted).To(BeEmpty(), "deletions of the deployed object")
}

// deployments returns the BundleDeployments of Bundle "app" of a namespace.
func deployments(g Gomega, namespace string) []fleetv1.BundleDeployment {
	var list fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &list, client.MatchingLabels{fleetv1.BundleNamespaceLabel: namespace, fleetv1.BundleLabel: "app"})).To(Succeed())
	return list.Items
}
