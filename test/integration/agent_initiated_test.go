package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// A Cluster whose agent is to call gets its Fleet Cluster at creation, and nothing by which
// Fleet could install an agent. Nobody runs here who would register it, and it says so.
func TestAgentInitiated(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
		AgentInitiated: ptr.To(true), AgentInitiatedSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"site": "edge"}},
	}})
	edge := fixture.Cluster(s.namespace, "edge", "", "")
	edge.Labels = map[string]string{"site": "edge"}
	g.Expect(admin.Create(ctx, edge)).To(Succeed())
	core := fixture.Cluster(s.namespace, "core", "", "")
	g.Expect(admin.Create(ctx, core)).To(Succeed())

	var clientID string
	g.Eventually(func(g Gomega) {
		fleet := fleetCluster(g, s.namespace, "edge")
		clientID = fleet.Spec.ClientID
		g.Expect(fleet.Spec.KubeConfigSecret).To(BeEmpty())
		g.Expect(len(clientID)).To(BeNumerically(">=", 26)) // of 32 letters: 130 bits
		g.Expect(importedReason(g, edge)).To(Equal("RegistrarMissing"))
		g.Expect(importedReason(g, core)).To(Equal("WaitingForControlPlane"))
	}).Should(Succeed())
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "core"}, &fleetv1.Cluster{})).NotTo(Succeed())

	// Nothing draws it anew: a change of the Cluster, the control plane, a restart.
	g.Expect(admin.Patch(ctx, edge, mergePatch(`{"metadata":{"labels":{"a":"b"}}}`))).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, edge)).To(Succeed())
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "edge").Labels).To(HaveKey("a")) }).Should(Succeed())
	g.Expect(fleetCluster(g, s.namespace, "edge").Spec.ClientID).To(Equal(clientID))
	g.Consistently(func(g Gomega) { g.Expect(importedReason(g, edge)).To(Equal("RegistrarMissing")) }).Should(Succeed())

	// The agent calls, and is in, whoever runs.
	fleet := fleetCluster(g, s.namespace, "edge")
	before := fleet.DeepCopy()
	fleet.Status.Agent.LastSeen = metav1.Now()
	g.Expect(admin.Status().Patch(ctx, fleet, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedReason(g, edge)).To(Equal("Imported")) }).Should(Succeed())

	// To the manager, and back: by another clientID its agent would be cut off.
	g.Expect(admin.Patch(ctx, edge, mergePatch(`{"metadata":{"annotations":{"`+stamp.RegistrationAnnotation+`":"manager"}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		fleet := fleetCluster(g, s.namespace, "edge")
		g.Expect(fleet.Spec.KubeConfigSecret).To(Equal("edge-kubeconfig"))
		g.Expect(fleet.Spec.ClientID).To(Equal(clientID))
	}).Should(Succeed())
	g.Expect(admin.Patch(ctx, edge, mergePatch(`{"metadata":{"annotations":{"`+stamp.RegistrationAnnotation+`":null}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		fleet := fleetCluster(g, s.namespace, "edge")
		g.Expect(fleet.Spec.KubeConfigSecret).To(BeEmpty())
		g.Expect(fleet.Spec.ClientID).To(Equal(clientID))
		g.Expect(importedReason(g, edge)).To(Equal("Imported"))
	}).Should(Succeed())

	// What Fleet has drawn for an agent that it installs is taken over.
	g.Expect(fixture.Initialize(ctx, admin, core)).To(Succeed())
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "core") }).Should(Succeed())
	const drawn = "drawn-by-fleet-itself"
	g.Expect(admin.Patch(ctx, fleetCluster(g, s.namespace, "core"), mergePatch(`{"spec":{"clientID":"`+drawn+`"}}`))).To(Succeed())
	for by, kubeconfig := range map[string]string{"agent": "", "manager": "core-kubeconfig"} {
		g.Expect(admin.Patch(ctx, core, mergePatch(`{"metadata":{"annotations":{"`+stamp.RegistrationAnnotation+`":"`+by+`"}}}`))).To(Succeed())
		g.Eventually(func(g Gomega) {
			fleet := fleetCluster(g, s.namespace, "core")
			g.Expect(fleet.Spec.KubeConfigSecret).To(Equal(kubeconfig))
			g.Expect(fleet.Spec.ClientID).To(Equal(drawn))
		}).Should(Succeed())
	}
}

// A topology Cluster is registered when what it refers to is there: without these values
// every bundle that reads them would stop, for all clusters.
func TestAgentInitiatedWaitsForItsValues(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := fixture.Cluster(s.namespace, "edge", s.class.Name, s.class.Namespace)
	cluster.Annotations = map[string]string{stamp.RegistrationAnnotation: "agent"}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedReason(g, cluster)).To(Equal("WaitingForControlPlane")) }).Should(Succeed())
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(cluster), &fleetv1.Cluster{})).NotTo(Succeed())
	initialize(g, cluster)
	g.Eventually(func(g Gomega) {
		fleet := fleetCluster(g, s.namespace, "edge")
		g.Expect(fleet.Spec.KubeConfigSecret).To(BeEmpty())
		g.Expect(fleet.Spec.TemplateValues.Data).To(HaveKey("ControlPlane"))
	}).Should(Succeed())
}

// A Cluster that is made anew while its Fleet Cluster stays gets a clientID of its own.
func TestAgentInitiatedAnew(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
		AgentInitiated: ptr.To(true), SetOwnerReferences: ptr.To(false),
	}})
	made := func() (*clusterv1.Cluster, string) {
		cluster := fixture.Cluster(s.namespace, "edge", "", "")
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		var clientID string
		g.Eventually(func(g Gomega) {
			fleet := fleetCluster(g, s.namespace, "edge")
			g.Expect(fleet.Annotations).To(HaveKeyWithValue(stamp.ImportedUIDAnnotation, string(cluster.UID)))
			clientID = fleet.Spec.ClientID
			g.Expect(clientID).NotTo(BeEmpty())
		}).Should(Succeed())
		return cluster, clientID
	}
	first, clientID := made()
	fleet := fleetCluster(g, s.namespace, "edge")
	before := fleet.DeepCopy()
	fleet.Status.Agent.LastSeen = metav1.Now()
	g.Expect(admin.Status().Patch(ctx, fleet, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(importedReason(g, first)).To(Equal("Imported")) }).Should(Succeed())
	g.Expect(admin.Delete(ctx, first)).To(Succeed())
	// Kubernetes keeps times in whole seconds: of two within one, neither is older.
	seen := time.Now().Unix()
	g.Eventually(func() int64 { return time.Now().Unix() }).Should(BeNumerically(">", seen))

	second, other := made()
	g.Expect(other).NotTo(Equal(clientID))
	g.Eventually(func(g Gomega) {
		g.Expect(importedReason(g, second)).NotTo(BeEmpty())
	}).Should(Succeed())
	g.Consistently(func(g Gomega) {
		g.Expect(importedReason(g, second)).NotTo(Equal("Imported"), "it was the agent of the first that called")
	}).Should(Succeed())
}

// A Fleet Cluster that somebody made by hand and hands over loses the kubeconfig by which Fleet
// would import it, and keeps the clientID by which its agent is known.
func TestAgentInitiatedHandedOver(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	made := func(name, clientID string) {
		g.Expect(admin.Create(ctx, &fleetv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Annotations: map[string]string{stamp.AdoptAnnotation: "true"}},
			Spec:       fleetv1.ClusterSpec{ClientID: clientID, KubeConfigSecret: name + "-kubeconfig"},
		})).To(Succeed())
		cluster := fixture.Cluster(s.namespace, name, "", "")
		cluster.Annotations = map[string]string{stamp.RegistrationAnnotation: "agent"}
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		g.Eventually(func(g Gomega) {
			fleet := fleetCluster(g, s.namespace, name)
			g.Expect(fleet.Annotations).To(HaveKeyWithValue(stamp.ImportedFromAnnotation, name))
			g.Expect(fleet.Spec.KubeConfigSecret).To(BeEmpty())
			g.Expect(importedReason(g, cluster)).To(Equal("RegistrarMissing"))
		}).Should(Succeed())
	}
	const drawn = "0123456789abcdef"
	made("known", drawn)
	g.Expect(fleetCluster(g, s.namespace, "known").Spec.ClientID).To(Equal(drawn))
	made("guessed", "edge-1")
	g.Expect(len(fleetCluster(g, s.namespace, "guessed").Spec.ClientID)).To(BeNumerically(">=", 26))
}

func importedReason(g Gomega, cluster *clusterv1.Cluster) string {
	return conditions.GetReason(get(g, &clusterv1.Cluster{}, cluster.Namespace, cluster.Name), "FleetImported")
}
