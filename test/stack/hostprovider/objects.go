package hostprovider

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	version      = "v1beta2"
	domain       = ".cluster.x-k8s.io"
	infra        = "infrastructure" + domain
	controlPlane = "controlplane" + domain
	bootstrap    = "bootstrap" + domain
)

// The kinds of the provider. All but the last have templates.
var (
	clusterKind      = schema.GroupVersionKind{Group: infra, Version: version, Kind: "HostCluster"}
	machineKind      = schema.GroupVersionKind{Group: infra, Version: version, Kind: "HostMachine"}
	controlPlaneKind = schema.GroupVersionKind{Group: controlPlane, Version: version, Kind: "HostControlPlane"}
	configKind       = schema.GroupVersionKind{Group: bootstrap, Version: version, Kind: "HostConfig"}
)

// CRDs returns the provider's kinds and their templates, with the labels of the contract.
func CRDs() []*unstructured.Unstructured {
	var crds []*unstructured.Unstructured
	for _, kind := range []schema.GroupVersionKind{clusterKind, machineKind, controlPlaneKind, configKind} {
		crds = append(crds, crd(kind.Group, kind.Kind), crd(kind.Group, kind.Kind+"Template"))
	}
	return crds
}

func crd(group, kind string) *unstructured.Unstructured {
	plural := strings.ToLower(kind) + "s"
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{
			"name":   plural + "." + group,
			"labels": map[string]any{"cluster.x-k8s.io/" + version: version},
		},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{"spec": anything, "status": anything},
				}},
			}},
		},
	}}
}

// Role lets Muster read the objects that the provider's Clusters refer to, as the operations page tells users of
// other providers.
const Role = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: muster-syncer-template-values-host
  labels: {fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer: "true"}
rules:
- {apiGroups: [controlplane.cluster.x-k8s.io], resources: [hostcontrolplanes], verbs: [get, list, watch]}
- {apiGroups: [infrastructure.cluster.x-k8s.io], resources: [hostclusters], verbs: [get, list, watch]}
`

// ClusterClass returns a class of the provider and the templates that it refers to. Its workers have the taints of
// a node that kubeadm has joined in a cluster with an external cloud provider.
func ClusterClass(namespace, name string) string {
	return fmt.Sprintf(`
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: HostClusterTemplate
metadata: {namespace: %[1]s, name: %[2]s}
spec: {template: {spec: {}}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: HostControlPlaneTemplate
metadata: {namespace: %[1]s, name: %[2]s}
spec: {template: {spec: {}}}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: HostConfigTemplate
metadata: {namespace: %[1]s, name: %[2]s}
spec: {template: {spec: {}}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: HostMachineTemplate
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  template:
    spec:
      taints:
      - {key: node.cluster.x-k8s.io/uninitialized, effect: NoSchedule}
      - {key: node.cloudprovider.kubernetes.io/uninitialized, value: "true", effect: NoSchedule}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  infrastructure:
    templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: HostClusterTemplate, name: %[2]s}
  controlPlane:
    templateRef: {apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: HostControlPlaneTemplate, name: %[2]s}
  workers:
    machineDeployments:
    - class: default-worker
      bootstrap:
        templateRef: {apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: HostConfigTemplate, name: %[2]s}
      infrastructure:
        templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: HostMachineTemplate, name: %[2]s}
`, namespace, name)
}

// isTrue returns a condition with status True.
func isTrue(kind string, now metav1.Time) map[string]any {
	return map[string]any{"type": kind, "status": "True", "reason": kind, "lastTransitionTime": now.UTC().Format("2006-01-02T15:04:05Z")}
}
