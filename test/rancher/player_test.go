package rancher

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// crds returns CRDs with the names and scopes of Rancher's, and open schemas. Rancher's management Clusters have no
// status subresource.
func crds() []byte {
	crd := func(group, version, scope, subresources string) string {
		return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.%[1]s}
spec:
  group: %[1]s
  names: {kind: Cluster, listKind: ClusterList, plural: clusters, singular: cluster}
  scope: %[3]s
  versions:
  - name: %[2]s
    served: true
    storage: true
    subresources: %[4]s
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---`, group, version, scope, subresources)
	}
	return []byte(crd("management.cattle.io", "v3", "Cluster", "{}") + crd("provisioning.cattle.io", "v1", "Namespaced", "{status: {}}"))
}

const (
	ownerLabel          = "cluster-api.cattle.io/capi-cluster-owner"
	ownerNamespaceLabel = "cluster-api.cattle.io/capi-cluster-owner-ns"
	autoImport          = "cluster-api.cattle.io/rancher-auto-import"
	externallyManaged   = "provisioning.cattle.io/externally-managed"
	turtlesFinalizer    = "capicluster.turtles.cattle.io"
	clusterNameLabel    = "management.cattle.io/cluster-name"
)

var (
	counter atomic.Int64
	crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
)

// newNamespace creates a Namespace with a unique name.
func newNamespace(g Gomega, prefix string, labels map[string]string) string {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, counter.Add(1)), Labels: labels}}
	g.Expect(admin.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

// downstream is a cluster as Rancher knows it: the objects that Turtles and Rancher make for a CAPI Cluster.
type downstream struct {
	cluster                  *clusterv1.Cluster
	workspace                string
	management, provisioning *unstructured.Unstructured
	// labels are the labels that Rancher sets on the Fleet Cluster in addition to its own.
	labels map[string]string
	// runs means that a real agent is to run: no registry and no proxy of Rancher's are there.
	runs bool
}

// newCluster plays a user and Cluster API: it creates a Cluster whose control plane is initialized.
func newCluster(g Gomega, namespace, name, class, classNamespace string, labels map[string]string) *clusterv1.Cluster {
	cluster := fixture.Cluster(namespace, name, class, classNamespace)
	cluster.Labels = labels
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	controlPlane, infrastructure := fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)
	g.Expect(admin.Create(ctx, controlPlane)).To(Succeed())
	g.Expect(admin.Create(ctx, infrastructure)).To(Succeed())
	before := cluster.DeepCopy()
	cluster.Spec.ControlPlaneRef, cluster.Spec.InfrastructureRef = fixture.ReferenceTo(controlPlane), fixture.ReferenceTo(infrastructure)
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	return cluster
}

// marked returns the labels of a Cluster that Turtles imports.
func marked(more ...string) map[string]string {
	labels := map[string]string{autoImport: "true"}
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	return labels
}

func rancherObject(apiVersion, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind("Cluster")
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// turtlesImports plays Turtles: it creates a management Cluster with finalizers and a name that the API server
// generates. The management Cluster names the Cluster in its labels, and has the Cluster's labels except those of
// Kubernetes' and Rancher's domains.
func turtlesImports(g Gomega, cluster *clusterv1.Cluster, annotations map[string]string) *downstream {
	d := &downstream{cluster: cluster, management: rancherObject("management.cattle.io/v3", "", "")}
	d.management.SetGenerateName("c-")
	labels := map[string]string{ownerLabel: cluster.Name, ownerNamespaceLabel: cluster.Namespace, "cluster-api.cattle.io/owned": ""}
	d.labels = map[string]string{}
	for key, value := range cluster.Labels {
		if !strings.Contains(key, "cattle.io") && !strings.Contains(key, "x-k8s.io") {
			labels[key], d.labels[key] = value, value
		}
	}
	all := map[string]string{
		"cluster-api.cattle.io/fleet-namespace-migrated": "cattle-fleet-system", "rancher.io/imported-cluster-version-management": "false",
		"field.cattle.io/no-creator-rbac": "true",
	}
	maps.Copy(all, annotations)
	d.management.SetLabels(labels)
	d.management.SetAnnotations(all)
	d.management.SetFinalizers([]string{turtlesFinalizer})
	g.Expect(unstructured.SetNestedField(d.management.Object, cluster.Name, "spec", "displayName")).To(Succeed())
	g.Expect(admin.Create(ctx, d.management)).To(Succeed())
	patch(g, cluster, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, turtlesFinalizer))
	return d
}

// assignsWorkspace plays Rancher's assignWorkspace.
func (d *downstream) assignsWorkspace(g Gomega, workspace string) {
	d.workspace = workspace
	patch(g, d.management, fmt.Sprintf(`{"spec":{"fleetWorkspaceName":%q}}`, workspace))
}

// provisions plays Rancher, which makes a provisioning Cluster from a management Cluster of Turtles'.
func (d *downstream) provisions(g Gomega) {
	d.provisioning = rancherObject("provisioning.cattle.io/v1", d.workspace, d.management.GetName())
	d.provisioning.SetLabels(d.management.GetLabels())
	g.Expect(admin.Create(ctx, d.provisioning)).To(Succeed())
	d.status(g, map[string]any{"clusterName": d.management.GetName()})
}

func (d *downstream) status(g Gomega, status map[string]any) {
	before := d.provisioning.DeepCopy()
	for key, value := range status {
		g.Expect(unstructured.SetNestedField(d.provisioning.Object, value, "status", key)).To(Succeed())
	}
	g.Expect(admin.Status().Patch(ctx, d.provisioning, client.MergeFrom(before))).To(Succeed())
}

// becomesReady plays Rancher's agent on the cluster.
func (d *downstream) becomesReady(g Gomega) {
	patch(g, d.management, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	d.status(g, map[string]any{"clientSecretName": d.provisioning.GetName() + "-kubeconfig"})
}

// fleetCluster returns the Fleet Cluster that Rancher wants.
func (d *downstream) fleetCluster() *fleetv1.Cluster {
	labels := map[string]string{clusterNameLabel: d.management.GetName(), "management.cattle.io/cluster-display-name": d.cluster.Name}
	maps.Copy(labels, d.labels)
	fleet := &fleetv1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: d.workspace, Name: d.provisioning.GetName(), Labels: labels},
		Spec: fleetv1.ClusterSpec{
			KubeConfigSecret: d.provisioning.GetName() + "-kubeconfig", KubeConfigSecretNamespace: d.provisioning.GetNamespace(),
			AgentEnvVars: []corev1.EnvVar{{Name: "HTTP_PROXY", Value: "http://proxy"}}, PrivateRepoURL: "registry.example.com",
			AgentTolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if d.runs {
		fleet.Spec.AgentEnvVars, fleet.Spec.PrivateRepoURL = nil, ""
	}
	return fleet
}

// applies plays Rancher: wrangler's three-way patch against its own annotation.
func (d *downstream) applies(g Gomega) {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	wrangler, err := apply.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(wrangler.WithDynamicLookup().WithSetID("fleet-cluster").WithOwner(d.provisioning).WithSetOwnerReference(true, false).
		WithRateLimiting(1000).ApplyObjects(d.fleetCluster())).To(Succeed())
}

func (d *downstream) key() types.NamespacedName {
	return types.NamespacedName{Namespace: d.workspace, Name: d.provisioning.GetName()}
}

func (d *downstream) fleet(g Gomega) *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, d.key(), fleet)).To(Succeed())
	return fleet
}

// imports plays the whole import.
func imports(g Gomega, cluster *clusterv1.Cluster, workspace string) *downstream {
	d := turtlesImports(g, cluster, nil)
	d.assignsWorkspace(g, workspace)
	d.provisions(g)
	d.becomesReady(g)
	d.applies(g)
	return d
}

// provisioned plays Rancher's own RKE2: a user creates a provisioning Cluster, and Rancher makes from it a
// management Cluster with its labels, and a CAPI Cluster that it owns.
func provisioned(g Gomega, workspace, name string, labels map[string]string) *downstream {
	d := &downstream{workspace: workspace, provisioning: rancherObject("provisioning.cattle.io/v1", workspace, name)}
	d.provisioning.SetLabels(labels)
	g.Expect(admin.Create(ctx, d.provisioning)).To(Succeed())
	d.management = rancherObject("management.cattle.io/v3", "", fmt.Sprintf("c-m-%08d", counter.Add(1)))
	d.management.SetLabels(labels)
	d.management.SetAnnotations(map[string]string{"provisioning.cattle.io/administrated": "true"})
	g.Expect(unstructured.SetNestedField(d.management.Object, workspace, "spec", "fleetWorkspaceName")).To(Succeed())
	g.Expect(admin.Create(ctx, d.management)).To(Succeed())
	d.status(g, map[string]any{"clusterName": d.management.GetName()})
	d.cluster = fixture.Cluster(workspace, name, "", "")
	d.cluster.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "provisioning.cattle.io/v1", Kind: "Cluster", Name: name, UID: d.provisioning.GetUID(), Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	g.Expect(admin.Create(ctx, d.cluster)).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, d.cluster)).To(Succeed())
	return d
}

func patch(g Gomega, object client.Object, body string) {
	g.Expect(admin.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(body)))).To(Succeed())
}
