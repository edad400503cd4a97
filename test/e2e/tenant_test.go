package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/stack"
)

// lookout is the time after the last trick in which the tests keep watching. The syncer acts within milliseconds,
// and Fleet within two seconds.
const lookout = 8 * time.Second

// trick is one attack that a tenant tries, in a namespace of its own.
type trick struct {
	name string
	// unselected means that the namespaceSelector does not match the namespace.
	unselected bool
	// ownGroup means that Muster makes a group of that name for a class in the namespace.
	ownGroup bool
	play     []step
	// after checks what else must hold after all steps.
	after func(g Gomega, m *tenant)
}

// A tenant, mallory, may write Clusters, ClusterClasses and Fleet's objects in his namespaces. He has no right in
// the namespace platform, so no bundle from there may ever reach him, whatever he writes. Muster's admission
// policies are a second fence: the same must hold without them.
func TestTenant(t *testing.T) {
	g := NewWithT(t)
	setUpPlatform(t, g)
	t.Run("as shipped", func(t *testing.T) { playTricks(t, "fenced", tricks()) })
	t.Run("without our policies", func(t *testing.T) {
		withoutPolicies(t, NewWithT(t))
		playTricks(t, "open", tricks())
	})
}

// playTricks plays every trick, and then checks the effects: everything that Muster and Fleet have written
// meanwhile and for some time after.
func playTricks(t *testing.T, prefix string, tricks []trick) {
	g := NewWithT(t)
	begin := time.Now()
	tenants := newTenants(t, g, prefix, tricks)
	for i, trick := range tricks {
		t.Run("playing: "+trick.name, func(t *testing.T) {
			tenants[i].T = t
			for _, step := range trick.play {
				step(NewWithT(t), tenants[i])
			}
		})
	}
	touchBundle(g) // Fleet notices an open mapping when it reconciles the bundle.
	time.Sleep(lookout)

	written, err := env.AuditLog(stack.AuditFilter{Since: begin, Where: func(event stack.AuditEvent) bool {
		return event.Code < 300 && (event.Verb == "create" || event.Verb == "patch" || event.Verb == "update")
	}})
	g.Expect(err).NotTo(HaveOccurred())
	deployments := 0
	for i, trick := range tricks {
		t.Run(trick.name, func(t *testing.T) {
			g := NewWithT(t)
			m := tenants[i]
			for _, event := range written {
				isMusters := event.User == stack.ServiceAccount("muster-system", syncerProcess)
				isMapping := isMusters && event.Resource == "bundlenamespacemappings" && event.Namespace == platform && event.Name == m.namespace
				isGroup := isMusters && event.Resource == "clustergroups" && event.Namespace == m.namespace && strings.HasSuffix(event.Name, "."+platform)
				isDeployment := event.Resource == "bundledeployments" && event.Verb == "create" && event.Name == baseline &&
					strings.HasPrefix(event.Namespace, "cluster-"+m.namespace+"-")
				if isDeployment {
					deployments++
				}
				isOpen := isMapping || isGroup && !trick.ownGroup || isDeployment
				g.Expect(isOpen && event.Received.After(m.since)).To(BeFalse(), "the namespace platform was open to him: %s", event)
			}
			if trick.after != nil {
				m.T = t
				trick.after(g, m)
			}
		})
	}
	g.Expect(deployments).To(BeNumerically(">=", 4), "those that may be there, of the legitimate Clusters")
}

// withoutPolicies removes the bindings of Muster's admission policies until the test ends.
func withoutPolicies(t *testing.T, g Gomega) {
	var bindings admissionregistrationv1.ValidatingAdmissionPolicyBindingList
	g.Expect(admin.List(ctx, &bindings)).To(Succeed())
	gone := 0
	for _, binding := range bindings.Items {
		if !strings.HasPrefix(binding.Name, "muster-") {
			continue
		}
		gone++
		g.Expect(admin.Delete(ctx, &binding)).To(Succeed())
		t.Cleanup(func() {
			binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}
			if err := admin.Create(ctx, &binding); err != nil {
				t.Errorf("putting back the policy binding %s: %v", binding.Name, err)
			}
		})
	}
	g.Expect(gone).To(BeNumerically(">", 0))
	time.Sleep(2 * time.Second) // The API server drops the policies a moment later.
}

// touchBundle makes Fleet recompute the targets of the platform's bundle.
func touchBundle(g Gomega) {
	kubectl(g, "-n", platform, "annotate", "--overwrite", "bundles.fleet.cattle.io", baseline, "reconcile-at="+time.Now().Format("150405.000"))
}

// nothingClaimed checks that Muster has imported no Cluster of the namespace.
func nothingClaimed(g Gomega, m *tenant) {
	retainedAtMost(g, m)
	for _, cluster := range m.clusters(g) {
		g.Expect(stamp.PinOf(cluster.Annotations).IsComplete()).To(BeFalse(), "Cluster %s is pinned: %v", cluster.Name, cluster.Annotations)
	}
}

// retainedAtMost checks that Muster reports an unselected Cluster as Deselected, even if it is pinned to an object
// that the tenant has forged.
func retainedAtMost(g Gomega, m *tenant) {
	for _, cluster := range m.clusters(g) {
		if condition := conditions.Get(&cluster, "FleetImported"); condition != nil {
			g.Expect(condition.Reason).To(Equal("Deselected"), "Cluster %s: %s", cluster.Name, condition.Message)
		}
	}
	namespace := &corev1.Namespace{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: m.namespace}, namespace)).To(Succeed())
	g.Expect(namespace.Annotations).NotTo(HaveKey("field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"))
}

func (m *tenant) clusters(g Gomega) []clusterv1.Cluster {
	var clusters clusterv1.ClusterList
	g.Expect(admin.List(ctx, &clusters, client.InNamespace(m.namespace))).To(Succeed())
	g.Expect(clusters.Items).NotTo(BeEmpty())
	return clusters.Items
}

// withoutClassLabels checks that no Fleet Cluster in the namespace has the platform's labels.
func withoutClassLabels(g Gomega, m *tenant) {
	var clusters fleetv1.ClusterList
	g.Expect(admin.List(ctx, &clusters, client.InNamespace(m.namespace))).To(Succeed())
	for _, cluster := range clusters.Items {
		g.Expect(cluster.Labels).NotTo(HaveKeyWithValue(stamp.ClassNamespaceLabel, platform), "Fleet Cluster %s", cluster.Name)
	}
}

// legitimate makes a Cluster of the platform's class in mallory's namespace, as a user who may, and waits for the
// platform's bundle. The other tricks must not bring that bundle.
func legitimate(g Gomega, m *tenant) {
	m.ofPlatform(g, platformClass, nil)
	g.Eventually(func(g Gomega) { g.Expect(m.deployed(g)).NotTo(BeEmpty()) }).WithTimeout(soon).Should(Succeed())
}

// deployed returns the platform's bundles that Fleet deploys in his namespace.
func (m *tenant) deployed(g Gomega) []string {
	var deployments fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &deployments, client.MatchingLabels{
		fleetv1.BundleNamespaceLabel: platform, fleetv1.ClusterNamespaceLabel: m.namespace})).To(Succeed())
	var names []string
	for _, deployment := range deployments.Items {
		names = append(names, deployment.Labels[fleetv1.ClusterLabel])
	}
	return names
}

// closes deletes the legitimate Cluster, removes by hand what Muster may have kept, and starts watching. Muster may
// keep what is live, but nothing that mallory writes may bring back a bundle that is gone.
func closes(g Gomega, m *tenant) {
	cluster := m.topology("theirs", "", "")
	g.Expect(m.Delete(ctx, cluster.DeepCopy())).To(Succeed())
	// Cluster API does not finish the deletion of a paused Cluster.
	g.Expect(client.IgnoreNotFound(m.Patch(ctx, cluster.DeepCopy(), mergePatch(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	eventuallyGone(g, cluster)
	time.Sleep(2 * time.Second)
	m.Logf("kept, which is allowed: %v", m.deployed(g))
	mapping := &fleetv1.BundleNamespaceMapping{}
	mapping.Namespace, mapping.Name = platform, m.namespace
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, mapping))).To(Succeed())
	// Fleet removes its BundleDeployments only when it next reconciles the Bundle.
	g.Eventually(func(g Gomega) {
		touchBundle(g)
		g.Expect(m.deployed(g)).To(BeEmpty())
	}).WithPolling(time.Second).WithTimeout(15 * time.Second).Should(Succeed())
	m.since = time.Now()
}

// try logs whether a request was refused. Either answer is fine if it has no effect.
func (m *tenant) try(what string, err error) {
	m.Helper()
	if err != nil {
		m.Logf("%s: refused: %v", what, err)
		return
	}
	m.Logf("%s: let through", what)
}

// tryRebase tries to rebase a Cluster to the platform's class in every way.
func tryRebase(g Gomega, m *tenant) {
	m.Helper()
	ref := `{"name":"` + platformClass + `","namespace":"` + platform + `"}`
	m.refused(g, m.Patch(ctx, m.topology("mine", "", ""), mergePatch(`{"spec":{"topology":{"classRef":`+ref+`}}}`)))
	m.refused(g, m.Patch(ctx, m.topology("mine", "", ""), client.RawPatch("application/json-patch+json", []byte(`[{"op":"replace","path":"/spec/topology/classRef","value":`+ref+`}]`))))
	old := fromYAML(g, fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {namespace: %s, name: mine}}", m.namespace))
	m.refused(g, m.Patch(ctx, old, mergePatch(`{"spec":{"topology":{"class":"`+platformClass+`","classNamespace":"`+platform+`"}}}`)))
}
