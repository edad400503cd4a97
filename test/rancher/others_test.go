package rancher

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
	"github.com/muster-fleet/muster/test/stack"
)

const successorFinalizer = "fleet.addons.cluster.x-k8s.io/turtles"

// successorReconciles plays the component of Turtles that succeeds CAAPF: it adds its finalizer and its labels, and
// replaces all template values. It writes only if something differs.
func successorReconciles(g Gomega, d *downstream) (wrote bool) {
	fleet := d.fleet(g)
	before := fleet.DeepCopy()
	controllerutil.AddFinalizer(fleet, successorFinalizer)
	class := current(g, d.Cluster).Spec.Topology.ClassRef
	if class.Namespace == "" {
		class.Namespace = d.Cluster.Namespace
	}
	fleet.Labels["cluster-api.cattle.io/clusterclass-name"], fleet.Labels["cluster-api.cattle.io/clusterclass-namespace"] = class.Name, class.Namespace
	cluster := current(g, d.Cluster)
	cluster.Status, cluster.ManagedFields, cluster.ResourceVersion = clusterv1.ClusterStatus{}, nil, ""
	content, err := json.Marshal(cluster)
	g.Expect(err).NotTo(HaveOccurred())
	var value map[string]any
	g.Expect(json.Unmarshal(content, &value)).To(Succeed())
	fleet.Spec.TemplateValues = &fleetv1.GenericMap{Data: map[string]any{"Cluster": value}}
	patch, err := client.MergeFrom(before).Data(fleet)
	g.Expect(err).NotTo(HaveOccurred())
	if string(patch) == "{}" {
		return false
	}
	g.Expect(client.IgnoreNotFound(admin.Patch(ctx, fleet, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner("turtles")))).To(Succeed())
	return true
}

// Turtles' successor of CAAPF works on the same Fleet Cluster. It replaces all template values and owns them
// afterwards. Both stop writing, the condition reports it, and only the successor removes its finalizer.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d := attachedCluster(g, namespace, workspace, "one")
	mapping := &fleetv1.BundleNamespaceMapping{
		ObjectMeta:        metav1.ObjectMeta{Namespace: namespace, Name: workspace},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": workspace}},
	}
	g.Expect(admin.Create(ctx, mapping)).To(Succeed())
	// The two take turns until neither writes.
	g.Eventually(func(g Gomega) {
		wrote := successorReconciles(g, d)
		quiet(g, d.Key().String())
		g.Expect(wrote).To(BeFalse())
	}).WithPolling(time.Second).Should(Succeed())
	willReport(g, d.Cluster, "True Attached", "spec.templateValues.ControlPlane", "spec.templateValues.Cluster")
	since, version := time.Now(), d.fleet(g).ResourceVersion
	for i := range 5 {
		annotate(g, d.Management, "touched", fmt.Sprintf("%q", fmt.Sprint(i)))
		d.applies(g)
		g.Expect(successorReconciles(g, d)).To(BeFalse())
	}
	quiet(g, namespace)
	g.Expect(requests(g, since, d.Key().String())).To(BeEmpty())
	g.Expect(d.fleet(g).ResourceVersion).To(Equal(version))
	fleet := d.fleet(g)
	g.Expect(fleet.Finalizers).To(ContainElement(successorFinalizer))
	g.Expect(fleet.Labels).To(And(HaveKeyWithValue(originLabel, namespace), HaveKeyWithValue("cluster-api.cattle.io/clusterclass-name", "std")))

	// The successor's order of deletion: Rancher deletes the Fleet Cluster, the finalizer holds it, and the mapping
	// goes first.
	g.Expect(admin.Delete(ctx, fleet)).To(Succeed())
	willReport(g, d.Cluster, "False WaitingForRancher", d.Key().String(), "to be deleted")
	g.Expect(admin.Delete(ctx, mapping)).To(Succeed())
	g.Eventually(func() error { // Fleet removes its own finalizer meanwhile.
		fleet = d.fleet(g)
		before := fleet.DeepCopy()
		controllerutil.RemoveFinalizer(fleet, successorFinalizer)
		return admin.Patch(ctx, fleet, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}).Should(Succeed())
	g.Eventually(isGone(fleet)).Should(BeTrue())
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(d.Management), d.Management)).To(Succeed())
	willReport(g, d.Cluster, "False WaitingForRancher", "Rancher to make the Fleet Cluster")
	d.applies(g)
	willReport(g, d.Cluster, "True Attached")
	g.Expect(seen.own(namespace)).To(BeEmpty())
}

// An attacker sets labels that name another tenant's Cluster. His Fleet Cluster gets neither labels nor template
// values of that Cluster, and that Cluster is imported as usual.
func TestForgedLabels(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	forged := func(victim *clusterv1.Cluster) map[string]string {
		return map[string]string{player.OwnerLabel: victim.Name, player.OwnerNamespaceLabel: victim.Namespace, "cluster-api.cattle.io/owned": ""}
	}
	// The victim has nothing to do with Rancher.
	plain := newCluster(g, namespace, "plain", "", "", nil)
	attacker := provisioned(g, workspace, "attacker", forged(plain))
	attacker.becomesReady(g)
	attacker.applies(g)
	willReport(g, plain, "True Imported")
	willReport(g, attacker.Cluster, "True Attached")
	g.Expect(attacker.fleet(g).Labels).To(HaveKeyWithValue(originLabel, workspace))

	// Turtles should import the victim, and an attacker's provisioning Cluster names it. The attacker also chose
	// the name of the management Cluster, so that Rancher makes a second provisioning Cluster from it.
	victim := newCluster(g, namespace, "victim", "", "", marked())
	early := provisioned(g, workspace, "early", forged(victim))
	early.becomesReady(g)
	early.applies(g)
	willReport(g, early.Cluster, "True Attached")
	willReport(g, victim, "False WaitingForRancher", "Turtles")
	annotate(g, early.Management, "provisioning.cattle.io/administrated", "null")
	second := player.Object("provisioning.cattle.io/v1", workspace, early.Management.GetName())
	g.Expect(admin.Create(ctx, second)).To(Succeed())
	g.Expect((&player.Downstream{Player: plays, Provisioning: second}).Status(ctx, map[string]any{"clusterName": early.Management.GetName()})).To(Succeed())
	willReport(g, early.Cluster, "False WaitingForRancher", "2 name it")
	willReport(g, victim, "False WaitingForRancher", "Turtles")

	// Turtles imports the victim. Then the owner of another imported Cluster relabels his management Cluster to
	// name the victim. The first one keeps the victim, and the other Cluster still counts as Rancher's.
	other := attachedCluster(g, namespace, workspace, "other")
	d := imports(g, victim, workspace)
	willReport(g, victim, "True Attached", d.Key().String())
	patch(g, other.Management, fmt.Sprintf(`{"metadata":{"labels":{%q:"victim"}}}`, player.OwnerLabel))
	g.Eventually(func(g Gomega) { g.Expect(seen.own(namespace)).NotTo(ContainElement("Fleet Cluster other")) }).Should(Succeed())
	willReport(g, other.Cluster, "False WaitingForRancher")
	g.Consistently(func(g Gomega) {
		g.Expect(d.fleet(g).Annotations).To(HaveKeyWithValue(domain+"/attached", namespace+"/victim"))
		g.Expect(other.fleet(g).Annotations).To(HaveKeyWithValue(domain+"/attached", namespace+"/other"))
	}).Should(Succeed())
	willReport(g, victim, "True Attached", d.Key().String())

	// If two management Clusters name a Cluster before it is attached, neither gets it.
	late := markedCluster(g, namespace, "late")
	one, two := turtlesImports(g, late, nil), turtlesImports(g, late, nil)
	for _, claim := range []*downstream{one, two} {
		claim.assignsWorkspace(g, workspace)
		claim.provisions(g)
		claim.becomesReady(g)
		claim.applies(g)
	}
	goes(g, late)
	again := markedCluster(g, namespace, "late")
	willReport(g, again, "False WaitingForRancher", one.Management.GetName(), two.Management.GetName(), player.OwnerLabel)
	g.Expect(seen.own(namespace)).To(ConsistOf("Bundle fleet-agent-plain", "Fleet Cluster plain"))

	// A Fleet Cluster that claims to be attached does not block another Cluster's import.
	mark := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "mark", Labels: map[string]string{player.ClusterNameLabel: "c-aaaaa"}}}
	g.Expect(admin.Create(ctx, mark)).To(Succeed())
	fresh := fixture.Cluster(namespace, "fresh", "", "")
	g.Expect(admin.Create(ctx, fresh)).To(Succeed())
	g.Expect(admin.Patch(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": map[string]any{
			"namespace": workspace, "name": "mark", "annotations": map[string]any{domain + "/attached": namespace + "/fresh", domain + "/attached-uid": string(fresh.UID)},
		},
	}}, client.Apply, client.FieldOwner(manager), client.ForceOwnership)).To(Succeed()) //nolint:staticcheck // as somebody else's client
	g.Expect(fixture.Initialize(ctx, admin, fresh)).To(Succeed())
	willReport(g, fresh, "True Imported")
}

// markedCluster creates a Cluster that refers to no other objects, as a user does.
func markedCluster(g Gomega, namespace, name string) *clusterv1.Cluster {
	cluster := fixture.Cluster(namespace, name, "", "")
	cluster.Labels = marked()
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	return cluster
}

// The installer does not touch a Fleet that Rancher has installed.
func TestInstaller(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.Apply(ctx, fixture.Rancher+`
---
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {install: {version: 0.15.0}, config: {server: {inferLocal: true}, bootstrapLocalCluster: true}}`)).To(Succeed())
	t.Cleanup(func() { withDefaults(g) })
	g.Expect(env.StartComponent(ctx, "installer")).To(Succeed())
	config := fixture.Config()
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(config), config)).To(Succeed())
		for kind, reason := range map[string]string{"FleetInstalled": "ManagedByRancher", "FleetConfigured": "ConfigureInRancher"} {
			g.Expect(config.Status.Conditions).To(ContainElement(And(HaveField("Type", kind), HaveField("Reason", reason))))
		}
	}).Should(Succeed())
	all, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-installer"), Where: func(event stack.AuditEvent) bool {
		return event.Verb != "get" && event.Verb != "list" && event.Verb != "watch" &&
			event.Resource != "leases" && event.Resource != "events" && event.Resource != "fleetaddonconfigs" && event.Group != "authentication.k8s.io" && event.Group != "authorization.k8s.io"
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(BeEmpty(), "what the installer wrote")
}
