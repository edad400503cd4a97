package migration

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// These are the settings of the simulated CAAPF, taken from its default FleetAddonConfig.
const (
	caapfNamespace  = "caapf-system"
	caapfDeployment = "caapf-controller-manager"
	caapfManager    = "addon-provider-fleet"
)

// caapfInstallation contains CAAPF's objects on an API server. Its CRD requires both selectors.
const caapfInstallation = `
apiVersion: v1
kind: Namespace
metadata: {name: caapf-system}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: caapf-system, name: caapf-controller-manager}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: caapf-manager}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, namespace: caapf-system, name: caapf-controller-manager}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: caapf-system, name: caapf-controller-manager}
spec:
  replicas: 1
  selector: {matchLabels: {control-plane: caapf}}
  template:
    metadata: {labels: {control-plane: caapf}}
    spec:
      serviceAccountName: caapf-controller-manager
      containers: [{name: manager, image: "registry.example.com/caapf:played"}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fleetaddonconfigs.addons.cluster.x-k8s.io, labels: {cluster.x-k8s.io/provider: addon-rancher-fleet}}
spec:
  group: addons.cluster.x-k8s.io
  scope: Cluster
  names: {kind: FleetAddonConfig, listKind: FleetAddonConfigList, plural: fleetaddonconfigs, singular: fleetaddonconfig}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            properties:
              cluster:
                type: object
                x-kubernetes-preserve-unknown-fields: true
                required: [selector, namespaceSelector]
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// caapfConfig is applied once the CRD exists.
const caapfConfig = `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec:
  cluster:
    applyClassGroup: true
    hostNetwork: true
    patchResource: true
    setOwnerReferences: true
    selector: {}
    namespaceSelector: {}
  clusterClass: {patchResource: true, setOwnerReferences: true}
`

// caapfOfClass contains the objects that CAAPF makes for a ClusterClass.
const caapfOfClass = `
apiVersion: fleet.cattle.io/v1alpha1
kind: ClusterGroup
metadata: {namespace: {{.Namespace}}, name: {{.Name}}, labels: {{.Labels}}, ownerReferences: [{{.Owner}}]}
spec: {selector: {matchLabels: {{.ClassLabels}}}}
`

// caapfOfCluster contains the objects that CAAPF makes, in this order, for an initialized Cluster.
const caapfOfCluster = `
apiVersion: fleet.cattle.io/v1alpha1
kind: BundleNamespaceMapping
metadata: {namespace: {{.ClassNamespace}}, name: {{.Namespace}}}
bundleSelector: {}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{.Namespace}}}}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: {{.Namespace}}, name: {{.Name}}, labels: {{.Labels}}, annotations: {{.Annotations}}, ownerReferences: [{{.Owner}}]}
spec:
  kubeConfigSecret: {{.Name}}-kubeconfig
  agentNamespace: fleet-addon-agent
  hostNetwork: true
  agentTolerations:
  - {effect: NoSchedule, key: node.kubernetes.io/not-ready, operator: Exists}
  - {effect: NoSchedule, key: node.cluster.x-k8s.io/uninitialized, operator: Exists}
  - {effect: NoSchedule, key: node.cloudprovider.kubernetes.io/uninitialized, operator: Equal, value: "true"}
  templateValues: {{.Values}}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: ClusterGroup
metadata: {namespace: {{.Namespace}}, name: {{.Class}}.{{.ClassNamespace}}, labels: {{.ClassLabels}}, ownerReferences: [{{.Owner}}]}
spec: {selector: {matchLabels: {{.ClassLabels}}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: {{.Namespace}}, annotations: {field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace: "true"}}
`

// playCAAPF does once what CAAPF's controllers do, with CAAPF's account. Like them, it applies without force, and
// goes on where another manager owns a field.
func playCAAPF() error {
	caapf, err := fixture.ClientAs(env, stack.ServiceAccount(caapfNamespace, caapfDeployment))
	if err != nil {
		return err
	}
	p := player{caapf}
	var classes clusterv1.ClusterClassList
	var clusters clusterv1.ClusterList
	var groups fleetv1.ClusterGroupList
	problems := []error{p.List(ctx, &classes), p.List(ctx, &clusters)}
	for i := range classes.Items {
		class := &classes.Items[i]
		problems = append(problems, p.finalize(class), p.apply(caapfOfClass, []string{caapfManager}, "ClusterClass", class, class.Name, class.Namespace, nil))
	}
	for i := range clusters.Items {
		problems = append(problems, p.cluster(&clusters.Items[i]))
	}
	problems = append(problems, p.List(ctx, &groups))
	for i := range groups.Items {
		problems = append(problems, p.group(&groups.Items[i], classes.Items))
	}
	return errors.Join(slices.DeleteFunc(problems, apierrors.IsConflict)...)
}

type player struct{ client.Client }

func (p player) cluster(cluster *clusterv1.Cluster) error {
	if err := p.finalize(cluster); err != nil || !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return err
	}
	values, err := p.templateValues(cluster)
	if err != nil {
		return err
	}
	class, perCluster := cluster.Spec.Topology.ClassRef, "cluster-"+cluster.Name+"-"+caapfManager
	return p.apply(caapfOfCluster, []string{perCluster, caapfManager, perCluster, "namespace-" + caapfManager}, "Cluster", cluster, class.Name, class.Namespace, values)
}

// group gives a group the labels of its class, with a second apply of the whole object: from then on two managers own
// everything, including the owner references.
func (p player) group(group *fleetv1.ClusterGroup, classes []clusterv1.ClusterClass) error {
	for _, class := range classes {
		if class.Name == group.Labels[stamp.ClassNameLabel] && class.Namespace == group.Labels[stamp.ClassNamespaceLabel] {
			maps.Copy(group.Labels, class.Labels)
		}
	}
	whole := &fleetv1.ClusterGroup{ObjectMeta: metav1.ObjectMeta{
		Namespace: group.Namespace, Name: group.Name, Labels: group.Labels, OwnerReferences: group.OwnerReferences,
	}}
	whole.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("ClusterGroup"))
	whole.Spec.Selector = group.Spec.Selector
	content, err := json.Marshal(whole)
	if err != nil {
		return err
	}
	return p.applyOne(content, caapfManager)
}

func (p player) finalize(object client.Object) error {
	before := object.DeepCopyObject().(client.Object)
	if controllerutil.AddFinalizer(object, stamp.Domain) {
		return p.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}
	return nil
}

// apply fills in a template, and applies each of its objects as a field manager. It stops at the first error.
func (p player) apply(text string, managers []string, kind string, object client.Object, class, classNamespace string, values any) error {
	asJSON := func(value any) string {
		content, _ := json.Marshal(value)
		return string(content)
	}
	classLabels := map[string]string{stamp.ClassNameLabel: class, stamp.ClassNamespaceLabel: classNamespace}
	labels := maps.Clone(classLabels)
	maps.Copy(labels, object.GetLabels())
	var filled strings.Builder
	if err := template.Must(template.New("").Parse(text)).Execute(&filled, map[string]string{
		"Namespace": object.GetNamespace(), "Name": object.GetName(), "Class": class, "ClassNamespace": classNamespace,
		"Labels": asJSON(labels), "ClassLabels": asJSON(classLabels), "Annotations": asJSON(object.GetAnnotations()), "Values": asJSON(values),
		"Owner": asJSON(metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: object.GetName(), UID: object.GetUID()}),
	}); err != nil {
		return err
	}
	for i, document := range strings.Split(filled.String(), "\n---\n") {
		content, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			return err
		}
		if err := p.applyOne(content, managers[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p player) applyOne(content []byte, manager string) error {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(content); err != nil {
		return err
	}
	unstructured.RemoveNestedField(object.Object, "status")
	return p.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager))
}

// templateValues returns the Cluster and the objects that it refers to, with all fields except status, managed fields
// and resource version.
func (p player) templateValues(cluster *clusterv1.Cluster) (map[string]any, error) {
	values := map[string]any{}
	for key, ref := range map[string]clusterv1.ContractVersionedObjectReference{
		"Cluster":               {APIGroup: clusterv1.GroupVersion.Group, Kind: "Cluster", Name: cluster.Name},
		"ControlPlane":          cluster.Spec.ControlPlaneRef,
		"InfrastructureCluster": cluster.Spec.InfrastructureRef,
	} {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: ref.APIGroup, Version: "v1beta2", Kind: ref.Kind})
		if err := p.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: ref.Name}, object); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", key, cluster.Name, err)
		}
		unstructured.RemoveNestedField(object.Object, "status")
		object.SetManagedFields(nil)
		object.SetResourceVersion("")
		values[key] = object.Object
	}
	return values, nil
}
