package desired

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-openapi/jsonpointer"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Keys of the template values, read in a bundle as ${ .ClusterValues.<key> }.
const (
	ClusterValue        = "Cluster"
	ControlPlaneValue   = "ControlPlane"
	InfrastructureValue = "InfrastructureCluster"
	VariablesValue      = "Variables"
)

// Values returns the template values of a Cluster: the Cluster, its control plane and its
// infrastructure cluster, and the topology's variables as a map. The objects come without status and
// the API server's own fields, and without the fields that the JSON pointers name, or that stay out of
// objects of their kind. A nil control plane or infrastructure cluster means that the Cluster refers to
// none.
func Values(cluster *clusterv1.Cluster, controlPlane, infrastructure map[string]any, pointers []string) (map[string]any, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cluster)
	if err != nil {
		return nil, fmt.Errorf("converting Cluster: %w", err)
	}
	object["apiVersion"] = clusterv1.GroupVersion.String()
	object["kind"] = clusterv1.ClusterKind
	// A hold, or the wish for one, must not change the values of the add-ons.
	for _, key := range []string{stamp.HookAnnotation, stamp.ClassHoldAnnotation} {
		unstructured.RemoveNestedField(object, "metadata", "annotations", key)
	}

	variables, err := variables(cluster)
	if err != nil {
		return nil, err
	}
	values := map[string]any{ClusterValue: Source(object), VariablesValue: variables}
	if controlPlane != nil {
		values[ControlPlaneValue] = referenced(controlPlane)
	}
	if infrastructure != nil {
		values[InfrastructureValue] = referenced(infrastructure)
	}
	exclude(values, withOtherReference(infrastructure, pointers))
	// To the API server, null means "absent": values with null fields would never equal the stored ones.
	prune(values, func(_ string, value any) bool { return value == nil })
	return values, nil
}

// referenced returns a copy of an object that a Cluster refers to, without what never reaches the template values.
func referenced(object map[string]any) map[string]any {
	result := Source(runtime.DeepCopyJSON(object))
	its := (&unstructured.Unstructured{Object: object}).GroupVersionKind().GroupKind()
	for _, pointer := range settings.AlwaysOut(its) {
		remove(result, segments(pointer))
	}
	return result
}

// withOtherReference repeats the JSON pointers into the control plane as pointers into the
// infrastructure cluster if that is a control plane, too. Cluster API lets both references name the
// same object, as many EKS Clusters do.
func withOtherReference(infrastructure map[string]any, pointers []string) []string {
	if kind, _ := infrastructure["kind"].(string); !strings.HasSuffix(kind, ControlPlaneValue) {
		return pointers
	}
	all := slices.Clone(pointers)
	for _, pointer := range pointers {
		if rest, ok := strings.CutPrefix(pointer, "/"+ControlPlaneValue+"/"); ok {
			all = append(all, "/"+InfrastructureValue+"/"+rest)
		}
	}
	return all
}

// Source removes, in place, the fields of an object that never reach the template values: status,
// fields that change without a user's change, and the annotations that IsOut names.
func Source(object map[string]any) map[string]any {
	delete(object, "status")
	metadata, _ := object["metadata"].(map[string]any)
	for _, key := range []string{"managedFields", "resourceVersion", "generation"} {
		delete(metadata, key)
	}
	prune(object, func(key string, _ any) bool { return IsOut(key) })
	return object
}

func variables(cluster *clusterv1.Cluster) (map[string]any, error) {
	result := map[string]any{}
	for _, variable := range cluster.Spec.Topology.Variables {
		var value any
		if err := json.Unmarshal(variable.Value.Raw, &value); err != nil {
			return nil, fmt.Errorf("variable %q of the topology: %w", variable.Name, err)
		}
		result[variable.Name] = value
	}
	return result, nil
}

// segments splits a JSON pointer (RFC 6901) and unescapes its segments.
func segments(pointer string) []string {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i := range parts {
		parts[i] = jsonpointer.Unescape(parts[i])
	}
	return parts
}

// remove deletes the value that the path points to; "*" stands for every key or item. An item of a
// list becomes null, so that the others keep their positions.
func remove(node any, path []string) {
	switch typed := node.(type) {
	case map[string]any:
		for key, child := range typed {
			switch {
			case !isSegment(path[0], key):
			case len(path) == 1:
				delete(typed, key)
			default:
				remove(child, path[1:])
			}
		}
	case []any:
		for i, child := range typed {
			switch {
			case !isSegment(path[0], strconv.Itoa(i)):
			case len(path) == 1:
				typed[i] = nil
			default:
				remove(child, path[1:])
			}
		}
	}
}
