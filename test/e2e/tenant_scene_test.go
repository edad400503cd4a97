package e2e

import (
	"encoding/json"
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
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// tenant is the user mallory in one of his namespaces. The client has his rights, and no others.
type tenant struct {
	*testing.T
	client.Client
	namespace string
	// since is the time from which the platform's bundles must not reach him; zero for always.
	since time.Time
}

// All templates of these classes are missing, so Cluster API accepts their Clusters and builds nothing. The tests
// set the control plane to initialized.
const classYAML = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {namespace: %s, name: %s}
spec:
  infrastructure: {templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: DevClusterTemplate, name: missing}}
  controlPlane: {templateRef: {apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlaneTemplate, name: missing}}
`

const (
	// platform is the namespace in which the platform team keeps its class std and its bundles.
	platform      = "platform"
	platformClass = "std"
	platformGroup = platformClass + "." + platform
	baseline      = "baseline"
)

const tenantRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: tenant}
rules:
- apiGroups: [cluster.x-k8s.io]
  resources: [clusters, clusters/status, clusterclasses]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [fleet.cattle.io]
  resources: [clusters, clustergroups, bundles]
  verbs: [get, list, watch, create, update, patch, delete]
`

// setUpPlatform makes the namespace whose bundles must not leave it. Its FleetAddonConfig selects neither namespaces
// with the label unselected nor Clusters of the class never.
func setUpPlatform(t *testing.T, g Gomega) {
	t.Helper()
	namespaces(g, platform)
	g.Expect(env.Apply(ctx, tenantRole)).To(Succeed())
	for _, name := range []string{platformClass, "never"} {
		g.Expect(env.Apply(ctx, fmt.Sprintf(classYAML, platform, name))).To(Succeed())
		acceptClass(g, platform, name)
	}
	bundles(g, platform, baseline, "{clusterSelector: {}}")
	g.Expect(env.Apply(ctx, `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec:
  cluster:
    onDeselect: Keep
    selector: {matchExpressions: [{key: clusterclass-name.fleet.addons.cluster.x-k8s.io, operator: NotIn, values: [never]}]}
    namespaceSelector: {matchExpressions: [{key: unselected, operator: DoesNotExist}]}
`)).To(Succeed())
}

// newTenants gives each trick a namespace of mallory's, with a class of his own in it.
func newTenants(t *testing.T, g Gomega, prefix string, tricks []trick) []*tenant {
	t.Helper()
	mallory, err := fixture.ClientAs(env, "mallory")
	g.Expect(err).NotTo(HaveOccurred())

	var tenants []*tenant
	for i, trick := range tricks {
		m := &tenant{T: t, Client: mallory, namespace: fmt.Sprintf("%s-%d", prefix, i)}
		labels := "{}"
		if trick.unselected {
			labels = `{unselected: ""}`
		}
		g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: %[2]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: tenant}
subjects: [{kind: User, name: mallory}]
`, m.namespace, labels))).To(Succeed())
		g.Eventually(func() error { return m.Create(ctx, fromYAML(g, fmt.Sprintf(classYAML, m.namespace, "own"))) }).Should(Succeed())
		tenants = append(tenants, m)
	}
	for _, m := range tenants {
		acceptClass(g, m.namespace, "own")
	}
	return tenants
}

// acceptClass waits until Cluster API knows a class, and sets its observedGeneration. Cluster API does not set it
// while templates are missing, and every Cluster would wait for it.
func acceptClass(g Gomega, namespace, name string) {
	g.Expect(env.WaitForClusterClass(ctx, namespace, name)).To(Succeed())
	class := &clusterv1.ClusterClass{}
	class.Namespace, class.Name = namespace, name
	g.Expect(admin.Status().Patch(ctx, class, mergePatch(`{"status":{"observedGeneration":1}}`))).To(Succeed())
}

func (m *tenant) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: m.namespace, Name: name}
}

// topology returns a Cluster of a class as mallory writes it.
func (m *tenant) topology(name, class, classNamespace string) *clusterv1.Cluster {
	return fixture.Cluster(m.namespace, name, class, classNamespace)
}

// ofPlatform creates the Cluster "theirs" of a class of the platform, as a user who may use the class.
func (m *tenant) ofPlatform(g Gomega, class string, with annotations) *clusterv1.Cluster {
	cluster := m.topology("theirs", class, platform)
	cluster.Annotations = with
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	m.initialize(g, cluster)
	return cluster
}

func (m *tenant) initialize(g Gomega, cluster *clusterv1.Cluster) {
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
}

// fleetCluster returns a Fleet Cluster that looks as if Muster had made it for a Cluster of the platform's class.
func (m *tenant) fleetCluster(name string, with ...annotations) *fleetv1.Cluster {
	cluster := &fleetv1.Cluster{}
	cluster.Namespace, cluster.Name, cluster.Annotations = m.namespace, name, joined(with...)
	cluster.Labels = joined(platformLabels, map[string]string{"app.kubernetes.io/managed-by": "muster"})
	return cluster
}

var platformLabels = stamp.Labels(types.NamespacedName{Namespace: platform, Name: platformClass})

// relabel puts labels and annotations on an object, by a merge patch.
func (m *tenant) relabel(object client.Object, labels map[string]string, with annotations) error {
	metadata := map[string]any{} // A null would remove all of them.
	if labels != nil {
		metadata["labels"] = labels
	}
	if with != nil {
		metadata["annotations"] = with
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return m.Patch(ctx, object, mergePatch(string(patch)))
}

// applyAs applies a Cluster of Cluster API's or of Fleet's with a field manager.
func (m *tenant) applyAs(g Gomega, manager, version, name string, labels map[string]string, with annotations) error {
	object := fromYAML(g, fmt.Sprintf("{apiVersion: %s, kind: Cluster, metadata: {namespace: %s, name: %s}}", version, m.namespace, name))
	object.SetLabels(labels)
	object.SetAnnotations(with)
	return m.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager), client.ForceOwnership)
}

// refused expects an error that names the missing permission to use the class.
func (m *tenant) refused(g Gomega, err error) {
	m.Helper()
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
	g.Expect(err.Error()).To(ContainSubstring("get clusterclasses.cluster.x-k8s.io"))
}

func mergePatch(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }

func fromYAML(g Gomega, text string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	g.Expect(yaml.Unmarshal([]byte(text), &object.Object)).To(Succeed())
	return object
}
