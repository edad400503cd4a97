// Package player plays Turtles and Rancher for tests: it makes the objects that they make for a CAPI Cluster, and
// writes the Fleet Cluster as Rancher does, by wrangler's three-way patch.
package player

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// CRDs returns CRDs with the names and scopes of Rancher's, and open schemas. Rancher's management Clusters have no
// status subresource.
func CRDs() []byte {
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

// Labels, annotations and finalizers of Turtles and Rancher.
const (
	OwnerLabel          = "cluster-api.cattle.io/capi-cluster-owner"
	OwnerNamespaceLabel = "cluster-api.cattle.io/capi-cluster-owner-ns"
	AutoImport          = "cluster-api.cattle.io/rancher-auto-import"
	ExternallyManaged   = "provisioning.cattle.io/externally-managed"
	TurtlesFinalizer    = "capicluster.turtles.cattle.io"
	ClusterNameLabel    = "management.cattle.io/cluster-name"
)

// Player acts as an administrator.
type Player struct {
	Admin  client.Client
	Config *rest.Config

	once     sync.Once
	wrangler apply.Apply
	broken   error
}

// applier returns Rancher's way of writing. It asks the API server once what it serves.
func (p *Player) applier() (apply.Apply, error) {
	p.once.Do(func() {
		made, err := apply.NewForConfig(p.Config)
		if p.broken = err; err == nil {
			p.wrangler = made.WithDynamicLookup().WithSetID("fleet-cluster").WithRateLimiting(1000)
		}
	})
	return p.wrangler, p.broken
}

// Downstream is a cluster as Rancher knows it: the objects that Turtles and Rancher make for a CAPI Cluster.
type Downstream struct {
	*Player
	Cluster                  *clusterv1.Cluster
	Workspace                string
	Management, Provisioning *unstructured.Unstructured
	// Labels are the labels that Rancher sets on the Fleet Cluster in addition to its own.
	Labels map[string]string
	// Runs means that a real agent runs: no registry and no proxy of Rancher's are there.
	Runs bool
}

// Object returns an object of Rancher's with nothing but a name.
func Object(apiVersion, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind("Cluster")
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// Patch sends a merge patch.
func (p *Player) Patch(ctx context.Context, object client.Object, body string, inputs ...any) error {
	return p.Admin.Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, body, inputs...)))
}

// Goes plays Turtles and Rancher: they remove their finalizers from an object that a user deletes.
func (p *Player) Goes(ctx context.Context, object client.Object) error {
	if err := p.Admin.Delete(ctx, object); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(p.Patch(ctx, object, `{"metadata":{"finalizers":null}}`))
}

// NewCluster plays a user and Cluster API: it creates a Cluster whose control plane is initialized.
func (p *Player) NewCluster(ctx context.Context, cluster *clusterv1.Cluster) error {
	if err := p.Admin.Create(ctx, cluster); err != nil {
		return err
	}
	controlPlane, infrastructure := fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)
	for _, object := range []client.Object{controlPlane, infrastructure} {
		if err := p.Admin.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	before := cluster.DeepCopy()
	cluster.Spec.ControlPlaneRef, cluster.Spec.InfrastructureRef = fixture.ReferenceTo(controlPlane), fixture.ReferenceTo(infrastructure)
	if err := p.Admin.Patch(ctx, cluster, client.MergeFrom(before)); err != nil {
		return err
	}
	return fixture.Initialize(ctx, p.Admin, cluster)
}

// TurtlesImports plays Turtles: it creates a management Cluster with finalizers and a name that the API server
// generates. The management Cluster names the Cluster in its labels, and has the Cluster's labels except those of
// Kubernetes' and Rancher's domains.
func (p *Player) TurtlesImports(ctx context.Context, cluster *clusterv1.Cluster, annotations map[string]string) (*Downstream, error) {
	d := &Downstream{Player: p, Cluster: cluster, Management: Object("management.cattle.io/v3", "", ""), Labels: map[string]string{}}
	d.Management.SetGenerateName("c-")
	labels := map[string]string{OwnerLabel: cluster.Name, OwnerNamespaceLabel: cluster.Namespace, "cluster-api.cattle.io/owned": ""}
	for key, value := range cluster.Labels {
		if !strings.Contains(key, "cattle.io") && !strings.Contains(key, "x-k8s.io") {
			labels[key], d.Labels[key] = value, value
		}
	}
	all := map[string]string{
		"cluster-api.cattle.io/fleet-namespace-migrated": "cattle-fleet-system", "rancher.io/imported-cluster-version-management": "false",
		"field.cattle.io/no-creator-rbac": "true",
	}
	maps.Copy(all, annotations)
	d.Management.SetLabels(labels)
	d.Management.SetAnnotations(all)
	d.Management.SetFinalizers([]string{TurtlesFinalizer})
	if err := unstructured.SetNestedField(d.Management.Object, cluster.Name, "spec", "displayName"); err != nil {
		return nil, err
	}
	if err := p.Admin.Create(ctx, d.Management); err != nil {
		return nil, err
	}
	return d, p.Patch(ctx, cluster, `{"metadata":{"finalizers":[%q]}}`, TurtlesFinalizer)
}

// AssignsWorkspace plays Rancher's assignWorkspace.
func (d *Downstream) AssignsWorkspace(ctx context.Context, workspace string) error {
	d.Workspace = workspace
	return d.Patch(ctx, d.Management, `{"spec":{"fleetWorkspaceName":%q}}`, workspace)
}

// Provisions plays Rancher, which makes a provisioning Cluster from a management Cluster of Turtles'.
func (d *Downstream) Provisions(ctx context.Context) error {
	d.Provisioning = Object("provisioning.cattle.io/v1", d.Workspace, d.Management.GetName())
	d.Provisioning.SetLabels(d.Management.GetLabels())
	if err := d.Admin.Create(ctx, d.Provisioning); err != nil {
		return err
	}
	return d.Status(ctx, map[string]any{"clusterName": d.Management.GetName()})
}

// Status plays Rancher, which writes the status of the provisioning Cluster.
func (d *Downstream) Status(ctx context.Context, status map[string]any) error {
	before := d.Provisioning.DeepCopy()
	for key, value := range status {
		if err := unstructured.SetNestedField(d.Provisioning.Object, value, "status", key); err != nil {
			return err
		}
	}
	return d.Admin.Status().Patch(ctx, d.Provisioning, client.MergeFrom(before))
}

// BecomesReady plays Rancher's agent on the cluster.
func (d *Downstream) BecomesReady(ctx context.Context) error {
	if err := d.Patch(ctx, d.Management, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`); err != nil {
		return err
	}
	return d.Status(ctx, map[string]any{"clientSecretName": d.Provisioning.GetName() + "-kubeconfig"})
}

// FleetCluster returns the Fleet Cluster that Rancher wants.
func (d *Downstream) FleetCluster() *fleetv1.Cluster {
	labels := map[string]string{ClusterNameLabel: d.Management.GetName(), "management.cattle.io/cluster-display-name": d.Cluster.Name}
	maps.Copy(labels, d.Labels)
	fleet := &fleetv1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Workspace, Name: d.Provisioning.GetName(), Labels: labels},
		Spec: fleetv1.ClusterSpec{
			KubeConfigSecret: d.Provisioning.GetName() + "-kubeconfig", KubeConfigSecretNamespace: d.Provisioning.GetNamespace(),
			AgentEnvVars: []corev1.EnvVar{{Name: "HTTP_PROXY", Value: "http://proxy"}}, PrivateRepoURL: "registry.example.com",
			AgentTolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if d.Runs {
		fleet.Spec.AgentEnvVars, fleet.Spec.PrivateRepoURL = nil, ""
	}
	return fleet
}

// Applies plays Rancher: wrangler's three-way patch against its own annotation.
func (d *Downstream) Applies() error {
	wrangler, err := d.applier()
	if err != nil {
		return err
	}
	return wrangler.WithOwner(d.Provisioning).ApplyObjects(d.FleetCluster())
}

// Key returns the key of Rancher's Fleet Cluster.
func (d *Downstream) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: d.Workspace, Name: d.Provisioning.GetName()}
}

// Provisioned plays Rancher's own RKE2: a user creates a provisioning Cluster, and Rancher makes from it a management
// Cluster of this name with its labels, and a CAPI Cluster that it owns.
func (p *Player) Provisioned(ctx context.Context, workspace, name, management string, labels map[string]string) (*Downstream, error) {
	d := &Downstream{Player: p, Workspace: workspace, Provisioning: Object("provisioning.cattle.io/v1", workspace, name)}
	d.Provisioning.SetLabels(labels)
	if err := p.Admin.Create(ctx, d.Provisioning); err != nil {
		return nil, err
	}
	d.Management = Object("management.cattle.io/v3", "", management)
	d.Management.SetLabels(labels)
	d.Management.SetAnnotations(map[string]string{"provisioning.cattle.io/administrated": "true"})
	if err := unstructured.SetNestedField(d.Management.Object, workspace, "spec", "fleetWorkspaceName"); err != nil {
		return nil, err
	}
	if err := p.Admin.Create(ctx, d.Management); err != nil {
		return nil, err
	}
	if err := d.Status(ctx, map[string]any{"clusterName": management}); err != nil {
		return nil, err
	}
	d.Cluster = fixture.Cluster(workspace, name, "", "")
	d.Cluster.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "provisioning.cattle.io/v1", Kind: "Cluster", Name: name, UID: d.Provisioning.GetUID(), Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	if err := p.Admin.Create(ctx, d.Cluster); err != nil {
		return nil, err
	}
	return d, fixture.Initialize(ctx, p.Admin, d.Cluster)
}
