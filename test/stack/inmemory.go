package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// InMemoryClass is the name of the ClusterClass of the in-memory provider.
const InMemoryClass = "in-memory"

// InMemoryClusterClass returns the in-memory provider's own ClusterClass and its templates in this namespace, under
// another name if one is given. It removes the delays with which the provider imitates slow machines.
func (s *Stack) InMemoryClusterClass(namespace string, name ...string) (string, error) {
	content, err := os.ReadFile(filepath.Join(s.tools.Manifests, parts.InMemoryClassFile))
	if err != nil {
		return "", err
	}
	objects, err := decode(content)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, object := range objects {
		withoutDelays(object.Object)
		object.SetNamespace(namespace)
		if object.GetKind() == "ClusterClass" && len(name) > 0 {
			object.SetName(name[0])
		}
		document, err := yaml.Marshal(object.Object)
		if err != nil {
			return "", err
		}
		out.WriteString("---\n")
		out.Write(document)
	}
	return out.String(), nil
}

func withoutDelays(node any) {
	switch node := node.(type) {
	case map[string]any:
		delete(node, "provisioning")
		for _, child := range node {
			withoutDelays(child)
		}
	case []any:
		for _, child := range node {
			withoutDelays(child)
		}
	}
}

// TopologyCluster describes a Cluster of a ClusterClass.
type TopologyCluster struct {
	Namespace string
	Name      string
	// Class defaults to the in-memory one.
	Class string
	// ClassNamespace is left out of the reference if it is empty.
	ClassNamespace string
	// PodCIDR defaults to 192.168.0.0/16.
	PodCIDR     string
	Labels      map[string]string
	Annotations map[string]string
	// ControlPlanes defaults to 1.
	ControlPlanes int
	Workers       int
}

// YAML returns the Cluster's manifest.
func (c TopologyCluster) YAML() string {
	classRef := map[string]any{"name": InMemoryClass}
	if c.Class != "" {
		classRef["name"] = c.Class
	}
	if c.ClassNamespace != "" {
		classRef["namespace"] = c.ClassNamespace
	}
	pods := c.PodCIDR
	if pods == "" {
		pods = "192.168.0.0/16"
	}
	metadata := map[string]any{"namespace": c.Namespace, "name": c.Name}
	if len(c.Labels) > 0 {
		metadata["labels"] = c.Labels
	}
	if len(c.Annotations) > 0 {
		metadata["annotations"] = c.Annotations
	}
	topology := map[string]any{
		"classRef": classRef, "version": "v1.33.0",
		"controlPlane": map[string]any{"replicas": max(c.ControlPlanes, 1)},
	}
	if c.Workers > 0 {
		topology["workers"] = map[string]any{"machineDeployments": []any{
			map[string]any{"class": "default-worker", "name": "md-0", "replicas": c.Workers},
		}}
	}
	document, err := yaml.Marshal(map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata,
		"spec": map[string]any{
			"clusterNetwork": map[string]any{
				"pods":     map[string]any{"cidrBlocks": []string{pods}},
				"services": map[string]any{"cidrBlocks": []string{"10.128.0.0/12"}},
			},
			"topology": topology,
		},
	})
	if err != nil {
		panic(err) // Maps of strings always marshal.
	}
	return string(document)
}

// WaitForClusterClass waits until Cluster API has reconciled a ClusterClass. Before that, Cluster API refuses
// Clusters of the class.
func (s *Stack) WaitForClusterClass(ctx context.Context, namespace, name string) error {
	return s.waitForCAPI(ctx, "ClusterClass", namespace, name, 2*time.Minute, func(object *unstructured.Unstructured) error {
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		ready := slices.ContainsFunc(conditions, func(condition any) bool {
			fields, _ := condition.(map[string]any)
			return fields["type"] == "VariablesReady" && fields["status"] == string(metav1.ConditionTrue)
		})
		if !ready {
			return fmt.Errorf("conditions are %v", conditions)
		}
		return nil
	})
}

// WaitForControlPlane waits until Cluster API reports a Cluster's control plane as initialized.
func (s *Stack) WaitForControlPlane(ctx context.Context, namespace, name string) error {
	return s.waitForCAPI(ctx, "Cluster", namespace, name, 4*time.Minute, func(object *unstructured.Unstructured) error {
		initialized, _, _ := unstructured.NestedBool(object.Object, "status", "initialization", "controlPlaneInitialized")
		if !initialized {
			conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
			return fmt.Errorf("conditions are %v", conditions)
		}
		return nil
	})
}

// WaitForBundles waits until Muster reports that the bundles of a Cluster are ready. Before that, Fleet may deploy its agent
// several times: its two controllers write over each other's parts of the status, among them what the agent was deployed
// with.
func (s *Stack) WaitForBundles(ctx context.Context, namespace, name string) error {
	return s.waitForCAPI(ctx, "Cluster", namespace, name, 4*time.Minute, func(object *unstructured.Unstructured) error {
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, condition := range conditions {
			if its, ok := condition.(map[string]any); ok && its["type"] == "FleetBundlesReady" && its["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", conditions)
	})
}

func (s *Stack) waitForCAPI(ctx context.Context, kind, namespace, name string, timeout time.Duration, condition func(*unstructured.Unstructured) error) error {
	return poll.Until(ctx, kind+" "+namespace+"/"+name, timeout, func(ctx context.Context) error {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion("cluster.x-k8s.io/v1beta2")
		object.SetKind(kind)
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
			return err
		}
		return condition(object)
	})
}
