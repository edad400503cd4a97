package rancher

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
)

const (
	domain      = "fleet.addons.cluster.x-k8s.io"
	originLabel = "cluster-namespace." + domain
	manager     = "muster-attach"
)

func equalKeys(a, b client.Object) bool {
	return maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

func current(g Gomega, cluster *clusterv1.Cluster) *clusterv1.Cluster {
	now := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(cluster), now)).To(Succeed())
	return now
}

// willReport waits until FleetImported of a Cluster has this status and reason, and a message with these parts.
func willReport(g Gomega, cluster *clusterv1.Cluster, state string, messages ...string) {
	g.Eventually(func(g Gomega) {
		its := conditions.Get(current(g, cluster), "FleetImported")
		g.Expect(its).NotTo(BeNil(), "no FleetImported")
		g.Expect(fmt.Sprintf("%s %s", its.Status, its.Reason)).To(Equal(state), its.Message)
		for _, part := range messages {
			g.Expect(its.Message).To(ContainSubstring(part))
		}
	}).Should(Succeed())
}

// quiet waits for three seconds in which the syncer writes no object with this path.
func quiet(g Gomega, path string) {
	g.Eventually(func() []string { return requests(g, time.Now().Add(-3*time.Second), path) }).WithPolling(time.Second).Should(BeEmpty())
}

// managers returns the managers of an object's fields.
func managers(object client.Object) (names []string) {
	for _, entry := range object.GetManagedFields() {
		names = append(names, entry.Manager)
	}
	return names
}

// isDetached expects a Fleet Cluster of Rancher's to have nothing of ours left.
func isDetached(g Gomega, fleet *fleetv1.Cluster) {
	g.Expect(managers(fleet)).NotTo(ContainElement(manager))
	g.Expect(fleet.Labels).NotTo(HaveKey(originLabel))
	for key := range fleet.Annotations {
		g.Expect(key).NotTo(ContainSubstring(domain))
	}
}

// While a Cluster waits, its condition names the reason, and the syncer makes no Fleet Cluster. In the end
// Rancher's Fleet Cluster has everything that bundles are targeted and rendered by.
func TestWaitsThenAttaches(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	g.Expect(admin.Create(ctx, fixture.Class(namespace, "std", map[string]string{"tier": "gold", "cattle.io/steers": "Rancher"}))).To(Succeed())
	cluster := newCluster(g, namespace, "one", "std", "", marked("env", "prod", "app.kubernetes.io/managed-by", "muster"))
	willReport(g, cluster, "False WaitingForRancher", "Turtles", player.AutoImport)
	d := turtlesImports(g, cluster, nil)
	willReport(g, cluster, "False WaitingForRancher", d.Management.GetName(), "workspace")
	d.assignsWorkspace(g, workspace)
	willReport(g, cluster, "False WaitingForRancher", d.Management.GetName(), "Ready", "CNI")
	d.provisions(g)
	d.becomesReady(g)
	willReport(g, cluster, "False WaitingForRancher", "Rancher to make the Fleet Cluster", workspace)
	delete(d.Labels, "app.kubernetes.io/managed-by")
	d.applies(g)
	willReport(g, cluster, "True Attached", d.Key().String())

	fleet := d.fleet(g)
	for key, value := range map[string]string{
		"env": "prod", "tier": "gold", originLabel: namespace, player.ClusterNameLabel: d.Management.GetName(),
		"clusterclass-name." + domain: "std", "clusterclass-namespace." + domain: namespace,
		"cluster-api.cattle.io/clusterclass-name": "std", "cluster-api.cattle.io/clusterclass-namespace": namespace,
	} {
		g.Expect(fleet.Labels).To(HaveKeyWithValue(key, value))
	}
	g.Expect(fleet.Labels).NotTo(Or(HaveKey("cattle.io/steers"), HaveKey(player.AutoImport), HaveKey("app.kubernetes.io/managed-by")))
	g.Expect(fleet.Spec.TemplateValues.Data).To(And(HaveKey("Cluster"), HaveKey("ControlPlane"), HaveKey("InfrastructureCluster"), HaveKey("Variables")))
	values, err := json.Marshal(fleet.Spec.TemplateValues)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(values)).To(And(ContainSubstring("10.7.0.0/16"), Not(ContainSubstring("hunter2"))))
	want := d.FleetCluster()
	fleet.Spec.TemplateValues, fleet.Spec.ClientID = nil, "" // Fleet draws a clientID.
	g.Expect(fleet.Spec).To(Equal(want.Spec), "Rancher's fields")
	g.Expect(fleet.Finalizers).To(HaveEach(HavePrefix("fleet.cattle.io/")), "Fleet's own")
	g.Expect(fleet.OwnerReferences).To(BeEmpty())

	// The Cluster shows the state that Fleet reports.
	before := d.fleet(g)
	reported := before.DeepCopy()
	reported.Status.Agent.LastSeen = metav1.Now()
	g.Expect(admin.Status().Patch(ctx, reported, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(conditions.Get(current(g, cluster), "FleetBundlesReady")).NotTo(BeNil()) }).Should(Succeed())
	g.Expect(seen.own(namespace)).To(BeEmpty())
}

// Rancher applies and the syncer reconciles a hundred times each, and neither makes the other write. Then each
// changes its own fields, and the other's fields stay.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	cluster := newCluster(g, namespace, "one", "std", "", marked("env", "prod"))
	d := imports(g, cluster, workspace)
	willReport(g, cluster, "True Attached")
	quiet(g, d.Key().String())
	version, changes, since := d.fleet(g).ResourceVersion, seen.changes(d.Key()), time.Now()
	for i := range 100 {
		d.applies(g)
		patch(g, d.Management, fmt.Sprintf(`{"spec":{"description":"%d"},"metadata":{"labels":{"touched":"%d"}}}`, i, i))
		// The syncer reconciles the Cluster because its Namespace has changed, but no field that it copies has.
		patch(g, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, fmt.Sprintf(`{"metadata":{"labels":{"touched":"%d"}}}`, i))
	}
	quiet(g, namespace)
	g.Expect(requests(g, since, d.Key().String())).To(BeEmpty(), "what the syncer wrote to Rancher's Fleet Cluster")
	g.Expect(seen.changes(d.Key())-changes).To(BeZero(), "changes of Rancher's Fleet Cluster")
	t.Logf("version %s before, %s after", version, d.fleet(g).ResourceVersion)

	// Rancher changes its own labels...
	d.Labels["region"] = "eu"
	d.applies(g)
	// ...and a user changes the Cluster.
	patch(g, cluster, `{"metadata":{"labels":{"shape":"round"},"annotations":{"note":"x"}}}`)
	g.Eventually(func(g Gomega) {
		fleet := d.fleet(g)
		g.Expect(fleet.Labels).To(And(HaveKeyWithValue("region", "eu"), HaveKeyWithValue("shape", "round"), HaveKeyWithValue(originLabel, namespace)))
		g.Expect(fleet.Annotations).To(HaveKeyWithValue("note", "x"))
	}).Should(Succeed())
	// A label that Turtles has also copied belongs to Rancher, and stays Rancher's.
	patch(g, cluster, `{"metadata":{"labels":{"env":"dev","shape":null}}}`)
	willReport(g, cluster, "True Attached", "metadata.labels.env")
	fleet := d.fleet(g)
	g.Expect(fleet.Labels).To(And(HaveKeyWithValue("env", "prod"), Not(HaveKey("shape")), HaveKeyWithValue(originLabel, namespace)))
	quiet(g, d.Key().String())
	since = time.Now()
	for range 10 {
		d.applies(g)
	}
	quiet(g, namespace)
	g.Expect(requests(g, since, d.Key().String())).To(BeEmpty(), "a conflict is not tried again and again")
	g.Expect(seen.own(namespace)).To(BeEmpty())
}

// Two namespaces have a class of the same name, and a third uses the class of the first. Each class has a group in
// the workspace, and Fleet deploys through it only to the Clusters of that class. The group goes with its last
// user.
func TestGroups(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	workspace := newNamespace(g, "workspace", nil)
	first, second, third := newNamespace(g, "team", nil), newNamespace(g, "team", nil), newNamespace(g, "team", nil)
	var all []*downstream
	for _, of := range []struct{ namespace, classNamespace string }{{first, first}, {second, second}, {third, first}, {first, first}} {
		if of.namespace == of.classNamespace {
			g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, fixture.Class(of.namespace, "std", nil)))).To(Succeed())
		}
		cluster := newCluster(g, of.namespace, fmt.Sprintf("one-%d", len(all)), "std", of.classNamespace, marked())
		all = append(all, imports(g, cluster, workspace))
	}
	groups := []string{"std." + first, "std." + second, "std." + first + "." + third, "std." + first}
	for i, d := range all {
		willReport(g, d.Cluster, "True Attached")
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: workspace, Name: groups[i]}, &fleetv1.ClusterGroup{})).To(Succeed())
		g.Expect(env.Apply(ctx, fixture.DataBundle(workspace, fmt.Sprintf("for-%d", i), "[{clusterGroup: "+groups[i]+"}]", "{from: here}"))).To(Succeed())
	}
	deployed := func(g Gomega, d *downstream) (names []string) {
		namespace := d.fleet(g).Status.Namespace
		g.Expect(namespace).NotTo(BeEmpty(), "Fleet has not made its namespace")
		var list fleetv1.BundleDeploymentList
		g.Expect(admin.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
		for _, deployment := range list.Items {
			if name := deployment.Labels[fleetv1.BundleLabel]; name != "fleet-agent-"+d.Key().Name {
				names = append(names, name)
			}
		}
		return names
	}
	for i, want := range [][]string{{"for-0", "for-3"}, {"for-1"}, {"for-2"}, {"for-0", "for-3"}} {
		g.Eventually(func(g Gomega) { g.Expect(deployed(g, all[i])).To(ConsistOf(want)) }).Should(Succeed())
	}

	key := types.NamespacedName{Namespace: workspace, Name: groups[0]}
	exists := func(group string) func(Gomega) {
		return func(g Gomega) {
			g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: workspace, Name: group}, &fleetv1.ClusterGroup{})).To(Succeed())
		}
	}
	// The syncer reverts changes, and makes the group again if a user deletes it.
	group := &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: groups[0]}}
	patch(g, group, `{"spec":{"selector":{"matchLabels":{"`+originLabel+`":null}}}}`)
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, key, group)).To(Succeed())
		g.Expect(group.Spec.Selector.MatchLabels).To(HaveKeyWithValue(originLabel, first))
	}).Should(Succeed())
	g.Expect(admin.Delete(ctx, group)).To(Succeed())
	g.Eventually(exists(groups[0])).Should(Succeed())
	// One of two users goes, then the other.
	patch(g, all[0].Cluster, fmt.Sprintf(`{"metadata":{"annotations":{"%s/rancher":"Off"}}}`, domain))
	g.Eventually(func(g Gomega) { isDetached(g, all[0].fleet(g)) }).Should(Succeed())
	g.Consistently(exists(groups[0])).Should(Succeed())
	patch(g, all[3].Cluster, fmt.Sprintf(`{"metadata":{"annotations":{"%s/rancher":"Off"}}}`, domain))
	g.Eventually(func() bool { return apierrors.IsNotFound(admin.Get(ctx, key, &fleetv1.ClusterGroup{})) }).Should(BeTrue())
	exists(groups[1])(g)
	for _, namespace := range []string{second, third} {
		g.Expect(seen.own(namespace)).To(BeEmpty())
	}
}
