package rancher

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
)

// attachedCluster returns a Cluster whose attachment has finished.
func attachedCluster(g Gomega, namespace, workspace, name string) *downstream {
	d := imports(g, newCluster(g, namespace, name, "std", "", marked()), workspace)
	willReport(g, d.Cluster, "True Attached")
	return d
}

func ownFleetCluster(g Gomega, cluster *clusterv1.Cluster) *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(cluster), fleet)).To(Succeed())
	return fleet
}

func isGone(object client.Object) func() bool {
	return func() bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object))
	}
}

// goes deletes an object, and waits until it is gone.
func goes(g Gomega, object client.Object) {
	g.Expect(plays.Goes(ctx, object)).To(Succeed())
	g.Eventually(isGone(object)).Should(BeTrue())
}

func annotate(g Gomega, object client.Object, key, value string) {
	patch(g, object, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value))
}

// A Cluster that is not imported into Rancher is imported as without Rancher. A "false" on the Cluster takes
// precedence over its Namespace.
func TestNotRanchers(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	plain, marking := newNamespace(g, "team", nil), newNamespace(g, "team", marked())
	for _, cluster := range []*clusterv1.Cluster{
		newCluster(g, plain, "one", "", "", nil), newCluster(g, marking, "out", "", "", map[string]string{player.AutoImport: "false"}),
	} {
		willReport(g, cluster, "True Imported")
		ownFleetCluster(g, cluster)
	}
	willReport(g, newCluster(g, marking, "in", "", "", nil), "False WaitingForRancher", "Turtles")
	g.Expect(seen.own(marking)).To(ConsistOf("Fleet Cluster out", "Bundle fleet-agent-out"))
}

// An externally managed Cluster is imported as without Rancher. A user may change the annotation either way at any
// time, and a second agent never appears.
func TestExternallyManaged(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	own := newCluster(g, namespace, "own", "", "", marked())
	theirs := turtlesImports(g, own, map[string]string{player.ExternallyManaged: "true"})
	willReport(g, own, "True Imported")
	// Turtles removes the annotation, as it does with use-caapf off. Rancher makes its own Fleet Cluster. Ours
	// stays as it is, and the condition reports the other one.
	annotate(g, theirs.Management, player.ExternallyManaged, "null")
	theirs.assignsWorkspace(g, workspace)
	theirs.provisions(g)
	theirs.becomesReady(g)
	g.Consistently(func(g Gomega) { willReport(g, own, "True Imported") }).Should(Succeed())
	theirs.applies(g)
	willReport(g, own, "True DoubleImport", "own", theirs.Key().String(), "docs/rancher.md")
	isDetached(g, theirs.fleet(g))
	uid := ownFleetCluster(g, own).UID
	// A user deletes ours, and the syncer labels Rancher's.
	g.Expect(admin.Delete(ctx, ownFleetCluster(g, own))).To(Succeed())
	willReport(g, own, "True Attached", theirs.Key().String())
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(own), &fleetv1.Cluster{})).To(Satisfy(apierrors.IsNotFound))

	// The other way: the syncer makes our Fleet Cluster only when Rancher's is gone.
	annotate(g, theirs.Management, player.ExternallyManaged, `"true"`)
	willReport(g, own, "False WaitingForRancher", theirs.Key().String(), "externally managed")
	g.Consistently(func() error { return admin.Get(ctx, client.ObjectKeyFromObject(own), &fleetv1.Cluster{}) }).Should(Satisfy(apierrors.IsNotFound))
	annotate(g, theirs.Management, player.ExternallyManaged, `"FALSE"`)
	willReport(g, own, "True Attached")
	annotate(g, theirs.Management, player.ExternallyManaged, `"true"`)
	g.Expect(admin.Delete(ctx, theirs.fleet(g))).To(Succeed())
	willReport(g, own, "True Imported")
	g.Expect(ownFleetCluster(g, own).UID).NotTo(Equal(uid))
}

// A user deletes the management Cluster, and Rancher removes its Fleet Cluster. Only then is the Cluster imported
// without Rancher. If Turtles will import it again, the Cluster waits for Turtles.
func TestManagementClusterDeleted(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	for name, again := range map[string]bool{"one": false, "two": true} {
		d := attachedCluster(g, namespace, workspace, name)
		g.Expect(admin.Delete(ctx, d.Management)).To(Succeed())
		willReport(g, d.Cluster, "False WaitingForRancher", d.Management.GetName(), "deleted")
		if !again {
			patch(g, d.Cluster, `{"metadata":{"annotations":{"imported":"true"}}}`)
		}
		goes(g, d.Management)
		goes(g, d.Provisioning)
		if again {
			willReport(g, d.Cluster, "False WaitingForRancher", "Turtles")
			goes(g, d.fleet(g))
			g.Consistently(func() []string { return seen.own(namespace) }).ShouldNot(ContainElement("Fleet Cluster two"))
			willReport(g, imports(g, d.Cluster, workspace).Cluster, "True Attached")
			continue
		}
		// Rancher deletes its Fleet Cluster after the provisioning Cluster. Until then the syncer makes none.
		willReport(g, d.Cluster, "False WaitingForRancher", "may still run")
		g.Expect(admin.Delete(ctx, d.fleet(g))).To(Succeed())
		willReport(g, d.Cluster, "True Imported")
		g.Expect(isGone(d.FleetCluster())()).To(BeTrue())
		g.Expect(ownFleetCluster(g, d.Cluster).CreationTimestamp.Time).NotTo(BeZero())
	}
}

// A Fleet Cluster of Rancher's that was left behind may still have a running agent, so the syncer makes none of its
// own.
func TestLeftBehindFleetCluster(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d := attachedCluster(g, namespace, workspace, "one")
	patch(g, d.Cluster, `{"metadata":{"annotations":{"imported":"true"}}}`)
	goes(g, d.Management)
	goes(g, d.Provisioning)
	willReport(g, d.Cluster, "False WaitingForRancher", d.Key().String(), "may still run")
	g.Consistently(func() []string { return seen.own(namespace) }).Should(BeEmpty())
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	g.Consistently(func() []string { return seen.own(namespace) }).WithTimeout(5 * time.Second).Should(BeEmpty())
	g.Expect(admin.Delete(ctx, d.fleet(g))).To(Succeed())
	willReport(g, d.Cluster, "True Imported")
}

// A user deletes the CAPI Cluster, once while the syncer runs and once while it is stopped. The syncer removes its
// data from Rancher's Fleet Cluster and leaves the deletion to Rancher; nothing of ours blocks the deletion of the
// CAPI Cluster.
func TestClusterDeleted(t *testing.T) {
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d, down := attachedCluster(g, namespace, workspace, "one"), attachedCluster(g, namespace, workspace, "two")
	uid := d.fleet(g).UID
	goes(g, d.Cluster)
	g.Eventually(func(g Gomega) { isDetached(g, d.fleet(g)) }).Should(Succeed())
	g.Expect(d.fleet(g).UID).To(Equal(uid))
	g.Expect(d.fleet(g).Spec.KubeConfigSecret).To(Equal(d.FleetCluster().Spec.KubeConfigSecret))

	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed())
	goes(g, down.Cluster)
	g.Expect(managers(down.fleet(g))).To(ContainElement(manager))
	g.Expect(env.Start(ctx, syncerProcess)).To(Succeed())
	g.Eventually(func(g Gomega) { isDetached(g, down.fleet(g)) }).Should(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(ctx, types.NamespacedName{Namespace: workspace, Name: "std." + namespace}, &fleetv1.ClusterGroup{}))
	}).Should(BeTrue())
	g.Expect(seen.own(namespace)).To(BeEmpty())
}

// RKE2 and K3s clusters that Rancher provisions: the CAPI Cluster has the same name and namespace as the Fleet
// Cluster.
func TestProvisionedByRancher(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	workspace := newNamespace(g, "workspace", nil)
	d := provisioned(g, workspace, "edge", nil)
	willReport(g, d.Cluster, "False WaitingForRancher", d.Management.GetName(), "Ready")
	d.becomesReady(g)
	d.applies(g)
	willReport(g, d.Cluster, "True Attached", d.Key().String())
	fleet := d.fleet(g)
	g.Expect(fleet.Labels).To(And(HaveKeyWithValue(originLabel, workspace), HaveKeyWithValue(player.ClusterNameLabel, d.Management.GetName())))
	g.Expect(fleet.Labels).NotTo(HaveKey("app.kubernetes.io/managed-by"))
	g.Expect(fleet.Spec.PrivateRepoURL).To(Equal("registry.example.com"))
	for range 10 {
		d.applies(g)
	}
	quiet(g, workspace)
	// Rancher makes the CAPI Cluster again. The webhook allows it, and the syncer attaches the new one.
	goes(g, d.Cluster)
	anew := fixture.Cluster(workspace, "edge", "", "")
	anew.OwnerReferences = d.Cluster.OwnerReferences
	g.Expect(admin.Create(ctx, anew)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(d.fleet(g).Annotations).To(HaveKeyWithValue(domain+"/attached-uid", string(anew.UID)))
	}).Should(Succeed())
	willReport(g, anew, "True Attached")
	g.Expect(d.fleet(g).UID).To(Equal(fleet.UID))
	g.Expect(seen.own(workspace)).To(ConsistOf("Bundle fleet-agent-edge"), "Rancher's own agent")
}

// withDefaults gives the FleetAddonConfig an empty spec. Without one, the settings would be unknown.
func withDefaults(g Gomega) {
	config := fixture.Config()
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, config))).To(Succeed())
	g.Expect(admin.Create(ctx, fixture.Config())).To(Succeed())
}

// The modes, for all Clusters and for one.
func TestModes(t *testing.T) {
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d, auto := attachedCluster(g, namespace, workspace, "one"), attachedCluster(g, namespace, workspace, "auto")
	annotate(g, auto.Cluster, domain+"/rancher", `"Auto"`)
	configure := func(mode string) {
		g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {rancher: {mode: %q}}`, mode))).To(Succeed())
	}
	t.Cleanup(func() { withDefaults(g) })
	configure("Import")
	willReport(g, d.Cluster, "True DoubleImport")
	g.Eventually(func(g Gomega) { isDetached(g, d.fleet(g)) }).Should(Succeed())
	configure("Off")
	willReport(g, d.Cluster, "True Imported")
	configure("Auto")
	willReport(g, d.Cluster, "True DoubleImport")
	g.Expect(admin.Delete(ctx, ownFleetCluster(g, d.Cluster))).To(Succeed())
	willReport(g, d.Cluster, "True Attached")
	willReport(g, auto.Cluster, "True Attached")
	g.Expect(managers(auto.fleet(g))).To(ContainElement(manager))
	g.Expect(seen.own(namespace)).NotTo(ContainElement("Fleet Cluster auto"))

	// Deselected: with Keep our data stays, with Delete the syncer removes it.
	g.Expect(env.Apply(ctx, `{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {cluster: {selector: {matchLabels: {in: "x"}}}}}`)).To(Succeed())
	willReport(g, auto.Cluster, "True Deselected")
	g.Expect(managers(auto.fleet(g))).To(ContainElement(manager))
	g.Expect(env.Apply(ctx, `{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {cluster: {onDeselect: Delete, selector: {matchLabels: {in: "x"}}}}}`)).To(Succeed())
	g.Eventually(func(g Gomega) { isDetached(g, auto.fleet(g)) }).Should(Succeed())
}

// Rancher's CRDs are removed and installed again while the syncer runs.
func TestRancherGoesAndComes(t *testing.T) {
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d := attachedCluster(g, namespace, workspace, "one")
	patch(g, d.Management, `{"metadata":{"finalizers":null}}`)
	waiting := newCluster(g, namespace, "two", "", "", marked())
	willReport(g, waiting, "False WaitingForRancher")
	t.Cleanup(func() { g.Expect(env.ApplyCRDs(ctx, player.CRDs())).To(Succeed()) })
	var others unstructured.UnstructuredList
	others.SetAPIVersion("management.cattle.io/v3")
	others.SetKind("ClusterList")
	g.Expect(admin.List(ctx, &others)).To(Succeed())
	for i := range others.Items {
		patch(g, &others.Items[i], `{"metadata":{"finalizers":null}}`)
	}
	for _, name := range []string{"clusters.management.cattle.io", "clusters.provisioning.cattle.io"} {
		crd := &unstructured.Unstructured{} // The scheme does not have the kind.
		crd.SetGroupVersionKind(crdKind)
		crd.SetName(name)
		g.Expect(admin.Delete(ctx, crd)).To(Succeed())
		g.Eventually(isGone(crd)).Should(BeTrue())
	}
	willReport(g, waiting, "True Imported")
	willReport(g, d.Cluster, "False WaitingForRancher", d.Key().String(), "may still run")
	g.Expect(seen.own(namespace)).NotTo(ContainElement("Fleet Cluster one"))

	g.Expect(env.ApplyCRDs(ctx, player.CRDs())).To(Succeed())
	third := newCluster(g, namespace, "three", "", "", marked())
	willReport(g, third, "False WaitingForRancher", "Turtles")
	willReport(g, imports(g, third, workspace).Cluster, "True Attached")
	d.Management.SetResourceVersion("")
	d.Management.SetUID("")
	g.Expect(admin.Create(ctx, d.Management)).To(Succeed())
	d.assignsWorkspace(g, workspace)
	d.provisions(g)
	d.becomesReady(g)
	willReport(g, d.Cluster, "True Attached", d.Key().String())
	g.Expect(seen.own(namespace)).NotTo(Or(ContainElement("Fleet Cluster one"), ContainElement("Fleet Cluster three")))
}
