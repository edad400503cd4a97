package migration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// The settings of the CAAPF that is played, those of its default FleetAddonConfig.
const (
	caapfNamespace  = "caapf-system"
	caapfDeployment = "caapf-controller-manager"
	caapfManager    = "addon-provider-fleet"
)

// caapfInstallation is what CAAPF has on an API server. Its CRD demands both selectors.
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

// caapfConfig is applied when the CRD is there.
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

// agentTolerations are CAAPF's defaults.
var agentTolerations = []map[string]any{
	{"effect": "NoSchedule", "key": "node.kubernetes.io/not-ready", "operator": "Exists"},
	{"effect": "NoSchedule", "key": "node.cluster.x-k8s.io/uninitialized", "operator": "Exists"},
	{"effect": "NoSchedule", "key": "node.cloudprovider.kubernetes.io/uninitialized", "operator": "Equal", "value": "true"},
}

// caapf is its account.
var caapf client.Client

// playCAAPF does what CAAPF's controllers do, as long as its Deployment has a replica. It
// applies without force and goes on where it is refused, as they do.
func playCAAPF(t *testing.T) {
	t.Helper()
	var err error
	if caapf, err = fixture.ClientAs(env, stack.ServiceAccount(caapfNamespace, caapfDeployment)); err != nil {
		t.Fatal(err)
	}
	playing, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		said := ""
		for playing.Err() == nil {
			if err := playOnce(playing); err != nil && playing.Err() == nil && err.Error() != said {
				said = err.Error()
				t.Logf("CAAPF: %s", said)
			}
			select {
			case <-playing.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
}

func playOnce(ctx context.Context) error {
	var deployment appsv1.Deployment
	err := caapf.Get(ctx, types.NamespacedName{Namespace: caapfNamespace, Name: caapfDeployment}, &deployment)
	if err != nil || ptr.Deref(deployment.Spec.Replicas, 1) == 0 {
		return client.IgnoreNotFound(err)
	}
	var classes clusterv1.ClusterClassList
	var clusters clusterv1.ClusterList
	var groups fleetv1.ClusterGroupList
	problems := []error{caapf.List(ctx, &classes), caapf.List(ctx, &clusters), caapf.List(ctx, &groups)}
	for i := range classes.Items {
		problems = append(problems, playClass(ctx, &classes.Items[i]))
	}
	for i := range clusters.Items {
		problems = append(problems, playCluster(ctx, &clusters.Items[i]))
	}
	for i := range groups.Items {
		problems = append(problems, playGroup(ctx, &groups.Items[i], classes.Items))
	}
	return errors.Join(problems...)
}

// playClass puts the finalizer on a ClusterClass and makes its group.
func playClass(ctx context.Context, class *clusterv1.ClusterClass) error {
	if err := putFinalizer(ctx, class); err != nil || class.DeletionTimestamp != nil {
		return err
	}
	labels := classLabels(class.Name, class.Namespace)
	its := maps.Clone(labels)
	maps.Copy(its, class.Labels)
	return applyAs(ctx, caapfManager, "ClusterGroup", class.Namespace, class.Name, map[string]any{
		"labels": its, "ownerReferences": []any{ownerOf("ClusterClass", class)},
	}, map[string]any{"spec": map[string]any{"selector": map[string]any{"matchLabels": labels}}})
}

// playCluster makes, in CAAPF's order, mapping, Fleet Cluster, group and annotation of a
// Cluster that is initialized.
func playCluster(ctx context.Context, cluster *clusterv1.Cluster) error {
	if err := putFinalizer(ctx, cluster); err != nil || cluster.DeletionTimestamp != nil ||
		!ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return err
	}
	perCluster := "cluster-" + cluster.Name + "-" + caapfManager
	class := cluster.Spec.Topology.ClassRef
	its := classLabels(class.Name, class.Namespace)
	values, err := templateValues(ctx, cluster)
	if err != nil {
		return err
	}
	labels := maps.Clone(its)
	maps.Copy(labels, cluster.Labels)
	// The first that fails ends it: nothing more is done for this Cluster.
	if err := applyAs(ctx, perCluster, "BundleNamespaceMapping", class.Namespace, cluster.Namespace, map[string]any{}, map[string]any{
		"bundleSelector":    map[string]any{},
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": cluster.Namespace}},
	}); err != nil {
		return err
	}
	if err := applyAs(ctx, caapfManager, "Cluster", cluster.Namespace, cluster.Name, map[string]any{
		"labels": labels, "annotations": cluster.Annotations, "ownerReferences": []any{ownerOf("Cluster", cluster)},
	}, map[string]any{"spec": map[string]any{
		"kubeConfigSecret": cluster.Name + "-kubeconfig", "agentNamespace": "fleet-addon-agent", "hostNetwork": true,
		"agentTolerations": agentTolerations, "templateValues": values,
	}}); err != nil {
		return err
	}
	if err := applyAs(ctx, perCluster, "ClusterGroup", cluster.Namespace, class.Name+"."+class.Namespace, map[string]any{
		"labels": its, "ownerReferences": []any{ownerOf("Cluster", cluster)},
	}, map[string]any{"spec": map[string]any{"selector": map[string]any{"matchLabels": its}}}); err != nil {
		return err
	}
	return applyNamespace(ctx, cluster.Namespace)
}

// playGroup gives a group the labels of its class, once more by the whole object: owners
// and all belong to two managers from then on.
func playGroup(ctx context.Context, group *fleetv1.ClusterGroup, classes []clusterv1.ClusterClass) error {
	at := slices.IndexFunc(classes, func(class clusterv1.ClusterClass) bool {
		return class.Name == group.Labels[stamp.ClassNameLabel] && class.Namespace == group.Labels[stamp.ClassNamespaceLabel]
	})
	if at < 0 {
		return nil
	}
	labels := maps.Clone(group.Labels)
	maps.Copy(labels, classes[at].Labels)
	var owners []any
	for _, owner := range group.OwnerReferences {
		owners = append(owners, map[string]any{"apiVersion": owner.APIVersion, "kind": owner.Kind, "name": owner.Name, "uid": owner.UID})
	}
	return applyAs(ctx, caapfManager, "ClusterGroup", group.Namespace, group.Name, map[string]any{"labels": labels, "ownerReferences": owners},
		map[string]any{"spec": map[string]any{"selector": map[string]any{"matchLabels": group.Spec.Selector.MatchLabels}}})
}

func classLabels(name, namespace string) map[string]string {
	return map[string]string{stamp.ClassNameLabel: name, stamp.ClassNamespaceLabel: namespace}
}

func ownerOf(kind string, object client.Object) map[string]any {
	return map[string]any{"apiVersion": clusterv1.GroupVersion.String(), "kind": kind, "name": object.GetName(), "uid": object.GetUID()}
}

func putFinalizer(ctx context.Context, object client.Object) error {
	if slices.Contains(object.GetFinalizers(), stamp.LegacyFinalizer) || object.GetDeletionTimestamp() != nil {
		return nil
	}
	before := object.DeepCopyObject().(client.Object)
	object.SetFinalizers(append(object.GetFinalizers(), stamp.LegacyFinalizer))
	return caapf.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// templateValues are the Cluster and what it refers to, without status, managed fields and
// resource version, and with all else.
func templateValues(ctx context.Context, cluster *clusterv1.Cluster) (map[string]any, error) {
	values := map[string]any{}
	for key, at := range map[string]struct {
		kind schema.GroupVersionKind
		name string
	}{
		"Cluster":               {clusterv1.GroupVersion.WithKind("Cluster"), cluster.Name},
		"ControlPlane":          {kindOf(cluster.Spec.ControlPlaneRef), cluster.Spec.ControlPlaneRef.Name},
		"InfrastructureCluster": {kindOf(cluster.Spec.InfrastructureRef), cluster.Spec.InfrastructureRef.Name},
	} {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(at.kind)
		if err := caapf.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: at.name}, object); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", key, cluster.Name, err)
		}
		unstructured.RemoveNestedField(object.Object, "status")
		object.SetManagedFields(nil)
		object.SetResourceVersion("")
		values[key] = object.Object
	}
	return values, nil
}

func kindOf(ref clusterv1.ContractVersionedObjectReference) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: ref.APIGroup, Version: "v1beta2", Kind: ref.Kind}
}

func applyNamespace(ctx context.Context, name string) error {
	const allow = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"
	namespace, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{allow: "true"}},
	})
	if err != nil {
		return err
	}
	delete(namespace, "status")
	return caapf.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: namespace}), client.FieldOwner("namespace-"+caapfManager))
}

// applyAs applies an object of Fleet's.
func applyAs(ctx context.Context, manager, kind, namespace, name string, metadata, rest map[string]any) error {
	metadata["namespace"], metadata["name"] = namespace, name
	whole := map[string]any{"apiVersion": fleetv1.SchemeGroupVersion.String(), "kind": kind, "metadata": metadata}
	maps.Copy(whole, rest)
	// Through JSON, for the types that unstructured objects hold.
	content, err := json.Marshal(whole)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(content); err != nil {
		return err
	}
	err = caapf.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager))
	if err != nil {
		return fmt.Errorf("%s %s/%s as %s: %w", kind, namespace, name, manager, err)
	}
	return nil
}
