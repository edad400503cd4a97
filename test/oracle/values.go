package oracle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"regexp"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// templateValues returns what bundles read as ${ .ClusterValues }: the Cluster, the objects that it refers to, and
// the variables of its topology; false if a reference cannot be resolved.
func (s *State) templateValues(in settings, cluster *clusterv1.Cluster) (map[string]any, bool) {
	object := plain(cluster)
	object["apiVersion"], object["kind"] = "cluster.x-k8s.io/v1beta2", "Cluster"
	variables := map[string]any{}
	for _, variable := range cluster.Spec.Topology.Variables {
		variables[variable.Name] = plain(map[string]any{"value": variable.Value})["value"]
	}
	values := map[string]any{"Cluster": lasting(object), "Variables": variables}

	for name, ref := range map[string]clusterv1.ContractVersionedObjectReference{
		"ControlPlane": cluster.Spec.ControlPlaneRef, "InfrastructureCluster": cluster.Spec.InfrastructureRef,
	} {
		if ref.Name == "" {
			continue
		}
		referenced := s.Referenced[Reference{Group: ref.APIGroup, Kind: ref.Kind, Key: Key{Namespace: cluster.Namespace, Name: ref.Name}}]
		if referenced == nil {
			return nil, false
		}
		values[name] = lasting(plain(referenced))
	}
	leaveOut(values, in.exclude)
	return values, true
}

// lasting drops fields that change without a change by the user.
func lasting(object map[string]any) map[string]any {
	delete(object, "status")
	metadata := object["metadata"].(map[string]any)
	for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
		delete(metadata, field)
	}
	withoutCopies(object)
	return object
}

// wholeCopies matches annotations that hold a copy of their own object.
var wholeCopies = regexp.MustCompile(
	`^([^/]+/(last-applied-configuration|last-applied|conversion-data)|kapp\.k14s\.io/original.*|objectset\.rio\.cattle\.io/applied)$`)

// withoutCopies drops these annotations from the object's metadata and from all metadata within it.
func withoutCopies(node any) {
	switch typed := node.(type) {
	case map[string]any:
		maps.DeleteFunc(typed, func(key string, _ any) bool { return wholeCopies.MatchString(key) })
		for _, child := range typed {
			withoutCopies(child)
		}
	case []any:
		for _, child := range typed {
			withoutCopies(child)
		}
	}
}

// leaveOut removes the fields that the pointers name. It also removes a variable under Variables from all lists of
// the topology, including overrides.
func leaveOut(values map[string]any, pointers []string) {
	for _, pointer := range pointers {
		path := strings.Split(pointer, "/")[1:]
		exclude(values, path)
		if path[0] != "Variables" && path[0] != "*" {
			continue
		}
		if path = path[1:]; len(path) == 0 {
			path = []string{"*"}
		}
		leaveOutVariable(field(values, "Cluster", "spec", "topology"), path)
	}
}

// leaveOutVariable removes a variable, or a part of it, from the lists of a topology.
func leaveOutVariable(node any, path []string) {
	switch typed := node.(type) {
	case map[string]any:
		for key, child := range typed {
			if items, isList := child.([]any); isList && (key == "variables" || key == "overrides") {
				typed[key] = withoutVariable(items, path)
			} else {
				leaveOutVariable(child, path)
			}
		}
	case []any:
		for _, child := range typed {
			leaveOutVariable(child, path)
		}
	}
}

func withoutVariable(items []any, path []string) []any {
	retained := []any{}
	for _, item := range items {
		name := field(item, "name")
		isNamed := path[0] == "*" || path[0] == name
		if isNamed && len(path) == 1 {
			continue
		}
		if isNamed {
			exclude(field(item, "value"), path[1:])
		}
		retained = append(retained, item)
	}
	return retained
}

// exclude removes the fields that the segments of a JSON pointer lead to; * is every key or item.
func exclude(node any, path []string) {
	switch typed := node.(type) {
	case map[string]any:
		for key, child := range maps.Clone(typed) {
			if path[0] != key && path[0] != "*" {
				continue
			}
			if len(path) == 1 {
				delete(typed, key)
			} else {
				exclude(child, path[1:])
			}
		}
	case []any:
		for _, child := range typed {
			if path[0] == "*" && len(path) > 1 {
				exclude(child, path[1:])
			}
		}
	}
}

// plain returns a value as JSON decodes it.
func plain(value any) map[string]any {
	var result map[string]any
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, &result)
	}
	if err != nil {
		panic(err) // All of it came from JSON.
	}
	return result
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func isDNSLabel(name string) bool { return dnsLabel.MatchString(name) }

// fleetName returns a name that Fleet can use: a DNS label.
func fleetName(full string) string {
	if isDNSLabel(full) {
		return full
	}
	return shortened(strings.ReplaceAll(full, ".", "-"), full)
}

// labelValue returns a name as a label's value.
func labelValue(name string) string {
	if len(name) <= 63 {
		return name
	}
	return shortened(name, name)
}

// shortened cuts a name, and adds a hash of the full name.
func shortened(readable, full string) string {
	sum := sha256.Sum256([]byte(full))
	return strings.TrimRight(readable[:min(len(readable), 54)], "-._") + "-" + hex.EncodeToString(sum[:])[:8]
}
