package rancher

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
)

const managementAnnotation = domain + "/rancher-cluster"

// Rancher lets go of a Cluster while the Cluster is paused, and leaves its Fleet Cluster behind. Then the condition
// does not say any more that the Cluster was attached, and still no second agent appears. The owner of the Cluster
// ends the wait.
func TestLetGoWhilePaused(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d := attachedCluster(g, namespace, workspace, "one")
	g.Expect(current(g, d.Cluster).Annotations).To(HaveKeyWithValue(managementAnnotation, d.Management.GetName()))
	g.Expect(d.fleet(g).Annotations).NotTo(HaveKey(managementAnnotation))
	patch(g, d.Cluster, `{"spec":{"paused":true},"metadata":{"annotations":{"imported":"true"}}}`)
	willReport(g, d.Cluster, "True Paused")
	goes(g, d.Management)
	goes(g, d.Provisioning)
	patch(g, d.Cluster, `{"spec":{"paused":false}}`)
	willReport(g, d.Cluster, "False WaitingForRancher", d.Key().String(), managementAnnotation)
	g.Consistently(func() []string { return seen.own(namespace) }).WithTimeout(5 * time.Second).Should(BeEmpty())
	annotate(g, d.Cluster, managementAnnotation, "null")
	willReport(g, d.Cluster, "True Imported")
	g.Eventually(func(g Gomega) { isDetached(g, d.fleet(g)) }).Should(Succeed())
}

// A user makes the provisioning Cluster of another tenant's import the owner of a Cluster of his own.
func TestForgedOwner(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	victim := attachedCluster(g, namespace, workspace, "victim")
	cluster := fixture.Cluster(workspace, victim.Provisioning.GetName(), "", "")
	cluster.Labels = map[string]string{"stolen": "true"}
	cluster.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "provisioning.cattle.io/v1", Kind: "Cluster", Name: victim.Provisioning.GetName(), UID: victim.Provisioning.GetUID(),
	}}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	willReport(g, cluster, "False WaitingForRancher", "that of an import")
	willReport(g, victim.Cluster, "True Attached", victim.Key().String())
	quiet(g, victim.Key().String())
	g.Expect(victim.fleet(g).Annotations).To(HaveKeyWithValue(domain+"/attached", namespace+"/victim"))
	g.Expect(victim.fleet(g).Labels).NotTo(HaveKey("stolen"))
	g.Expect(seen.own(workspace)).To(ConsistOf("Bundle fleet-agent-" + victim.Key().Name))
}

// Another writer owns the annotation that says whose the attachment is. Nothing is attached, and the syncer does not
// try again and again.
func TestAttachedBySomeoneElse(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d := attachedCluster(g, namespace, workspace, "one")
	fleet := d.fleet(g)
	patch(g, fleet, fmt.Sprintf(`{"metadata":{"annotations":{"%s/attached":"%s/other"}}}`, domain, namespace))
	patch(g, d.Cluster, `{"metadata":{"labels":{"shape":"round"}}}`)
	willReport(g, d.Cluster, "True NameConflict", namespace+"/other", domain+"/attached")
	quiet(g, namespace)
	patch(g, fleet, fmt.Sprintf(`{"metadata":{"annotations":{"%s/attached":null}}}`, domain))
	willReport(g, d.Cluster, "True Attached")
	g.Expect(d.fleet(g).Labels).To(HaveKeyWithValue("shape", "round"))
}

// The Bundles of a class's namespace reach Clusters in a workspace only if the administrator opens the namespace to
// it, and then only the Clusters of the class. The status says how many clusters the mapping reaches.
func TestBundleMappings(t *testing.T) {
	g := NewWithT(t)
	namespace, other, workspace := newNamespace(g, "team", nil), newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d, neighbour := attachedCluster(g, namespace, workspace, "one"), attachedCluster(g, other, workspace, "two")
	g.Expect(env.Apply(ctx, fixture.DataBundle(namespace, "of-class", "[{clusterGroup: std."+namespace+"}]", "{from: here}"))).To(Succeed())
	deployed := func(d *downstream) func(Gomega) []string {
		return func(g Gomega) []string { return deployedTo(g, namespace, d.fleet(g)) }
	}
	mapping := &fleetv1.BundleNamespaceMapping{}
	read := func() error {
		return admin.Get(ctx, types.NamespacedName{Namespace: namespace, Name: workspace}, mapping)
	}
	g.Consistently(read).Should(Satisfy(apierrors.IsNotFound))
	g.Expect(deployed(d)(g)).To(BeEmpty())

	t.Cleanup(func() { withDefaults(g) })
	configure := func(mappings string) {
		g.Expect(env.Apply(ctx, fmt.Sprintf(`{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {rancher: {bundleMappings: [%s]}}}`, mappings))).To(Succeed())
	}
	configure(fmt.Sprintf("{namespace: %s, workspace: %s}", namespace, workspace))
	g.Eventually(read).Should(Succeed())
	g.Expect(mapping.BundleSelector).NotTo(BeNil())
	g.Expect(mapping.NamespaceSelector.MatchLabels).To(HaveKeyWithValue("kubernetes.io/metadata.name", workspace))
	g.Eventually(deployed(d)).WithTimeout(inTime).Should(ConsistOf("of-class"))
	g.Expect(deployed(neighbour)(g)).To(BeEmpty())
	g.Eventually(func(g Gomega) {
		config := fixture.Config()
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(config), config)).To(Succeed())
		g.Expect(config.Status.BundleMappings).To(ConsistOf(addonsv1.BundleMappingStatus{Namespace: namespace, Workspace: workspace, Clusters: 2}))
	}).Should(Succeed())
	g.Expect(admin.Delete(ctx, mapping)).To(Succeed())
	old := mapping.UID
	g.Eventually(func(g Gomega) {
		g.Expect(read()).To(Succeed(), "it is made again")
		g.Expect(mapping.UID).NotTo(Equal(old))
	}).Should(Succeed())
	// The Bundles of the mapping change twice, 15 s apart, and Rancher's Fleet Clusters do not. Nothing is left to do.
	bundle, values := &fleetv1.Bundle{}, []string(nil)
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "of-class"}, bundle)).To(Succeed())
		if value := bundle.Annotations[domain+"/retarget"]; !slices.Contains(values, value) {
			values = append(values, value)
		}
		g.Expect(values[max(0, len(values)-2):]).To(Equal([]string{fmt.Sprintf("%s.1", mapping.UID), fmt.Sprintf("%s.1.again", mapping.UID)}))
		g.Expect(read()).To(Succeed())
		g.Expect(mapping.Annotations).NotTo(HaveKey(domain + "/retarget"))
	}).Should(Succeed())
	g.Expect(d.fleet(g).Annotations).NotTo(HaveKey(domain + "/retarget"))

	configure("")
	g.Eventually(read).Should(Satisfy(apierrors.IsNotFound))
	g.Expect(deployed(d)(g)).To(BeEmpty())
}
