package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// Muster adopts in place what CAAPF leaves on a cluster: the objects stay, without the finalizers, managers and owner
// references that caused trouble.
func TestMigrationFromCAAPF(t *testing.T) {
	g := NewWithT(t)
	startSyncer := stop(t, g, syncerProcess)
	s := newScene(t, g)
	clusters := []*clusterv1.Cluster{s.started(g, "one", "env"), s.started(g, "two", "env")}
	for _, cluster := range clusters {
		patchf(g, cluster, `{"metadata":{"finalizers":[%q]}}`, stamp.Domain)
	}
	unstamp(t, g, clusters...)
	for _, cluster := range clusters {
		s.leaveCAAPFObjects(g, cluster)
	}
	patchf(g, s.class, `{"metadata":{"finalizers":[%q],"labels":{"tier":"gold"}}}`, stamp.Domain)
	uids := idsOf(g, s.leftByCAAPF("one", "two"), client.Object.GetUID)

	startSyncer()
	configureCluster(t, g, "{naming: {prefix: capi-}}")
	g.Eventually(func(g Gomega) {
		for _, cluster := range clusters {
			live := current(g, cluster)
			g.Expect(live.Finalizers).NotTo(ContainElement(stamp.Domain))
			g.Expect(stamp.PinOf(live.Annotations).ClusterName).To(Equal("capi-" + cluster.Name))
			imported := fleetCluster(g, s.namespace, "capi-"+cluster.Name)
			g.Expect(imported.Labels).To(And(HaveKeyWithValue("tier", "gold"), HaveKeyWithValue("env", "yes"), Not(HaveKey("stale"))))
			g.Expect(imported.OwnerReferences).To(HaveLen(1))
			g.Expect(imported.Spec.TemplateValues.Data).To(HaveKey("InfrastructureCluster"))
		}
		g.Expect(get(g, &clusterv1.ClusterClass{}, s.classNamespace, "standard").Finalizers).To(BeEmpty())
		for _, shared := range []client.Object{s.group(), s.mapping()} {
			exists(g, shared)
			g.Expect(shared.GetOwnerReferences()).To(BeEmpty())
			g.Expect(shared.GetManagedFields()).NotTo(ContainElement(HaveField("Manager", HaveSuffix("-addon-provider-fleet"))), "on %T", shared)
		}
	}).Should(Succeed())
	g.Expect(idsOf(g, s.leftByCAAPF("one", "two"), client.Object.GetUID)).To(Equal(uids))

	// All objects go with their last user.
	deleteNow(g, clusters[0], clusters[1], s.class)
	vanishes(g, s.group())
	g.Eventually(func(g Gomega) { g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).To(BeEmpty()) }).Should(Succeed())
}

// leaveCAAPFObjects makes the objects that CAAPF makes for a Cluster, with a naming prefix.
func (s scene) leaveCAAPFObjects(g Gomega, cluster *clusterv1.Cluster) {
	owner := fmt.Sprintf("[{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, name: %s, uid: %s}]", cluster.Name, cluster.UID)
	classLabels := fmt.Sprintf("%s: standard, %s: %s", stamp.ClassNameLabel, stamp.ClassNamespaceLabel, s.classNamespace)
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
`, s.namespace, cluster.Name, classLabels, owner, cluster.Name))
	caapf(g, perCluster, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: ClusterGroup
metadata: {namespace: %s, name: standard.%s, labels: {%s}, ownerReferences: %s}
spec: {selector: {matchLabels: {%s}}}
`, s.namespace, s.classNamespace, classLabels, owner, classLabels))
	caapf(g, perCluster, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: BundleNamespaceMapping
metadata: {namespace: %s, name: %s}
bundleSelector: {}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[2]s}}
`, s.classNamespace, s.namespace))
	caapf(g, "namespace-addon-provider-fleet", fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, annotations: {%s: \"true\"}}}",
		s.namespace, workspace))
}

// leftByCAAPF are the Fleet objects that CAAPF leaves for these Clusters.
func (s scene) leftByCAAPF(names ...string) []client.Object {
	left := []client.Object{s.group(), s.mapping()}
	for _, name := range names {
		left = append(left, s.fleet("capi-"+name))
	}
	return left
}

// idsOf reads objects and returns one value of each.
func idsOf[T any](g Gomega, objects []client.Object, of func(client.Object) T) (ids []T) {
	exists(g, objects...)
	for _, object := range objects {
		ids = append(ids, of(object))
	}
	return ids
}

// CAAPF imports Clusters that match either of two selectors, Muster those Clusters that match both. The others that
// CAAPF imported stay as they are until a user decides.
func TestMigrationOfWhatOneSelectorMatches(t *testing.T) {
	for _, policy := range []string{"Keep", "Delete"} {
		t.Run(policy, func(t *testing.T) {
			g := NewWithT(t)
			startSyncer := stop(t, g, syncerProcess)
			s := newScene(t, g)
			patch(g, named(&corev1.Namespace{}, "", s.namespace), entry("labels", "import", `"yes"`))
			cluster := s.started(g, "one")
			unstamp(t, g, cluster)
			s.leaveCAAPFObjects(g, cluster)
			versions := idsOf(g, s.leftByCAAPF("one"), client.Object.GetResourceVersion)
			uid := fleetCluster(g, s.namespace, "capi-one").UID
			configureCluster(t, g, `{selector: {matchLabels: {fleet: "yes"}}, namespaceSelector: {matchLabels: {import: "yes"}}, naming: {prefix: capi-}, onDeselect: `+policy+"}")
			startSyncer()
			if policy == "Delete" {
				vanishes(g, s.leftByCAAPF("one")...)
				return
			}
			willReport(g, cluster, "True Deselected")
			g.Consistently(func(g Gomega) {
				g.Expect(idsOf(g, s.leftByCAAPF("one"), client.Object.GetResourceVersion)).To(Equal(versions))
				g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).To(HaveKey(workspace))
			}).Should(Succeed())

			patch(g, cluster, entry("labels", "fleet", `"yes"`)) // The user decides.
			g.Eventually(func(g Gomega) {
				reports(g, cluster, "Imported")
				live := fleetCluster(g, s.namespace, "capi-one")
				g.Expect(live.UID).To(Equal(uid))
				g.Expect(live.ManagedFields).NotTo(ContainElement(HaveField("Manager", ContainSubstring("cluster-capi-"))))
			}).Should(Succeed())
		})
	}
}

// CAAPF leaves several Fleet Clusters for one Cluster when naming changes. Muster pins the Cluster to the one with
// the expected name, or else to the oldest.
func TestSeveralFleetClustersOfOneCluster(t *testing.T) {
	for prefix, want := range map[string]string{"new-": "new-one", "never-": "zzz-one"} {
		t.Run(want, func(t *testing.T) {
			g := NewWithT(t)
			startSyncer := stop(t, g, syncerProcess)
			namespace := newNamespace(t, g, "team", nil)
			cluster := plainCluster(g, namespace, "one", nil)
			initialize(g, cluster)
			unstamp(t, g, cluster)
			for i, prefix := range []string{"zzz-", "aaa-", "new-"} {
				if i > 0 {
					time.Sleep(1100 * time.Millisecond) // Creation times are whole seconds.
				}
				caapf(g, "addon-provider-fleet", fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %s, name: %sone, ownerReferences: [{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, name: one, uid: %s}]}
spec: {kubeConfigSecret: one-kubeconfig}
`, namespace, prefix, cluster.UID))
			}
			configureCluster(t, g, "{naming: {prefix: "+prefix+"}}")
			startSyncer()
			g.Eventually(func(g Gomega) { g.Expect(stamp.PinOf(current(g, cluster).Annotations).ClusterName).To(Equal(want)) }).Should(Succeed())
		})
	}
}
