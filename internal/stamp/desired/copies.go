package desired

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// IsCopy reports whether an annotation holds a copy of the whole object that it is on, as it was once
// applied or as it is in another version. Fields that are left out of the object must not come in
// through its copy. The name of the tool does not matter (many use kubectl's name under a prefix of
// their own).
func IsCopy(key string) bool {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		return false
	}
	switch name {
	case "last-applied-configuration", // kubectl, KubeVela
		"last-applied",    // banzaicloud.com: operators that compare with objectmatcher
		"conversion-data": // cluster.x-k8s.io: what an older API version cannot hold
		return true
	}
	return prefix == "objectset.rio.cattle.io" && name == "applied" || // Rancher's Wrangler
		prefix == "kapp.k14s.io" && strings.HasPrefix(name, "original") // kapp, and its differences
}

// IsOut reports whether an annotation stays out of the cache, the template values and the Fleet objects: it holds a
// copy of the object, or Cluster API notes there where it is in an upgrade (pending-hooks, upgrade-step). An upgrade
// changes these notes ten times, and the Fleet Cluster would be written each time.
func IsOut(key string) bool {
	return IsCopy(key) || strings.HasPrefix(key, "runtime.cluster.x-k8s.io/") || strings.HasPrefix(key, "topology.internal.cluster.x-k8s.io/")
}

// prune removes the fields that a function selects, in place, at any depth: an object may hold the metadata of other
// objects, such as its machines.
func prune(node any, selects func(key string, value any) bool) {
	switch typed := node.(type) {
	case map[string]any:
		maps.DeleteFunc(typed, selects)
		for _, child := range typed {
			prune(child, selects)
		}
	case []any:
		for _, child := range typed {
			prune(child, selects)
		}
	}
}

// exclude removes the values that the pointers lead to. The values contain a topology's variables several times:
// in Variables, in the Cluster, and in the overrides of its parts. A pointer to one of them applies to all.
func exclude(values map[string]any, pointers []string) {
	paths := make([][]string, 0, len(pointers))
	for _, pointer := range pointers {
		paths = append(paths, segments(pointer))
	}
	topology := topologyOf(values)
	var variables [][]string // paths into a variable: its name, then into its value
	for _, path := range paths {
		variables = append(variables, variablePaths(path, topology)...)
	}
	for _, path := range paths {
		remove(values, path)
	}
	if len(variables) == 0 {
		return
	}
	if slices.ContainsFunc(variables, func(path []string) bool { return len(path) == 0 }) {
		delete(values, VariablesValue)
		variables = [][]string{{"*"}}
	}
	for _, path := range variables {
		remove(values[VariablesValue], path)
	}
	// The values that positional pointers name are gone by now, so items may be removed: a null would
	// break every template that goes through the list by name.
	removeVariables(topology, "variables", variables)
	removeOverrides(field(topology, "controlPlane"), variables)
	workers := field(topology, "workers")
	for _, kind := range []string{"machineDeployments", "machinePools"} {
		parts, _ := workers[kind].([]any)
		for _, part := range parts {
			removeOverrides(part, variables)
		}
	}
}

func topologyOf(values map[string]any) map[string]any {
	return field(field(values[ClusterValue], "spec"), "topology")
}

func field(node any, key string) map[string]any {
	parent, _ := node.(map[string]any)
	child, _ := parent[key].(map[string]any)
	return child
}

// variablePaths returns the variables, or the paths in them, that a pointer's path leads to: by name
// in Variables, or by position in the Cluster's list of variables. An empty path means all. A path to
// an object that holds the variables among other fields, such as /Cluster, names none.
func variablePaths(path []string, topology map[string]any) [][]string {
	if isSegment(path[0], VariablesValue) {
		return [][]string{path[1:]}
	}
	list := []string{ClusterValue, "spec", "topology", "variables"}
	if len(path) < len(list) || !slices.EqualFunc(path[:len(list)], list, isSegment) {
		return nil
	}
	path = path[len(list):]
	if len(path) == 0 {
		return [][]string{nil}
	}
	items, _ := topology["variables"].([]any)
	var result [][]string
	for i, item := range items {
		variable, _ := item.(map[string]any)
		name, ok := variable["name"].(string)
		if !ok || !isSegment(path[0], strconv.Itoa(i)) {
			continue
		}
		switch {
		case len(path) == 1:
			result = append(result, []string{name})
		case isSegment(path[1], "value"):
			result = append(result, append([]string{name}, path[2:]...))
		}
	}
	return result
}

func removeOverrides(part any, paths [][]string) {
	removeVariables(field(part, "variables"), "overrides", paths)
}

// removeVariables removes variables, or values in them, from a list of names and values.
func removeVariables(parent map[string]any, key string, paths [][]string) {
	items, ok := parent[key].([]any)
	if !ok {
		return
	}
	parent[key] = slices.DeleteFunc(items, func(item any) bool {
		variable, _ := item.(map[string]any)
		name, _ := variable["name"].(string)
		for _, path := range paths {
			if !isSegment(path[0], name) {
				continue
			}
			if len(path) == 1 {
				return variable != nil
			}
			remove(variable["value"], path[1:])
		}
		return false
	})
}

// isSegment reports whether a segment of a pointer leads to a key.
func isSegment(segment, key string) bool { return segment == "*" || segment == key }

// HashAnnotation holds the hash of the object as last applied. It distinguishes a field that we no
// longer want from a field that another writer added, without keeping managedFields in memory. A desired
// object without it is a part, because there is too much to copy: all that it does not name stays.
const HashAnnotation = stamp.Domain + "/applied-hash"

// reserved are the labels and annotations that Muster never copies to a Fleet object; prunedBy and IsOut have
// further ones. They steer Fleet and Rancher (fleet.cattle.io/cluster-management makes Fleet ignore a
// cluster), or describe the object that they were copied from.
var reserved = settings.Keys{
	"fleet.cattle.io/":         true,
	"management.cattle.io/":    true,
	"objectset.rio.cattle.io/": true,
	"meta.helm.sh/":            true,
	stamp.Domain + "/":         true,
	stamp.HookAnnotation:       true,
	stamp.ClassNameLabel:       true,
	stamp.ClassNamespaceLabel:  true,
}

// isCopied reports whether a label or annotation with this key is copied to Fleet objects.
func isCopied(in settings.Settings, key string) bool {
	return !reserved.Has(key) && !prunedBy.Has(key) && !in.Cluster.NotCopied.Has(key) && !IsOut(key)
}

// copied returns the entries of the maps that are copied to a Fleet object; if maps share a key,
// the last one wins.
func copied(in settings.Settings, sources ...map[string]string) map[string]string {
	result := map[string]string{}
	for _, source := range sources {
		maps.Copy(result, source)
	}
	maps.DeleteFunc(result, func(key, _ string) bool { return !isCopied(in, key) })
	return result
}

// metadataOf returns the labels and annotations of a Fleet Cluster by which bundles are targeted, in maps of our own: those
// that name its class and its targets, and the copied ones. IsWhole is false if these are left out, because there is TooMuch.
func metadataOf(in settings.Settings, cluster *clusterv1.Cluster, class *Class, targets Targets) (labels, annotations map[string]string, isWhole bool) {
	labels, annotations = map[string]string{}, map[string]string{}
	if isWhole = TooMuch(in, cluster, class) == ""; isWhole {
		labels, annotations = copied(in, classLabels(class), cluster.Labels), copied(in, cluster.Annotations)
	}
	classKey := cluster.GetClassKey()
	maps.Copy(labels, stamp.Labels(classKey))
	if _, isShortened := stamp.LabelValue(classKey.Name); isShortened {
		annotations[stamp.ClassFullNameAnnotation] = classKey.Name
	}
	if noted := targets.annotation(); noted != "" {
		annotations[TargetingAnnotation] = noted
	}
	return labels, annotations, isWhole
}

// Class is the metadata of a ClusterClass; Muster reads nothing else of it. Nil stands for a class
// that does not exist (yet).
type Class = metav1.PartialObjectMetadata

func classLabels(class *Class) map[string]string {
	if class == nil {
		return nil
	}
	return class.Labels
}
