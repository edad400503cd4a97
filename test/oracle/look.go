package oracle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Look reads, of the namespaces that begin with a prefix, what Muster writes; of
// Namespaces themselves those that known names.
func Look(ctx context.Context, reader client.Reader, prefix string, known map[string]*corev1.Namespace) (State, error) {
	seen := NewState()
	var (
		clusters      clusterv1.ClusterList
		classes       clusterv1.ClusterClassList
		fleetClusters fleetv1.ClusterList
		groups        fleetv1.ClusterGroupList
		mappings      fleetv1.BundleNamespaceMappingList
		namespaces    corev1.NamespaceList
		registrations fleetv1.ClusterRegistrationList
		secrets       corev1.SecretList
	)
	for _, list := range []client.ObjectList{&clusters, &classes, &fleetClusters, &groups, &mappings, &namespaces, &registrations, &secrets} {
		if err := reader.List(ctx, list); err != nil {
			return seen, err
		}
	}
	keep(prefix, seen.Clusters, clusters.Items)
	keep(prefix, seen.Classes, classes.Items)
	keep(prefix, seen.FleetClusters, fleetClusters.Items)
	keep(prefix, seen.Groups, groups.Items)
	keep(prefix, seen.Mappings, mappings.Items)
	keep(prefix, seen.Calling.Registrations, registrations.Items)
	keep(prefix, seen.Calling.Manifests, slices.DeleteFunc(secrets.Items, func(secret corev1.Secret) bool {
		return !strings.HasSuffix(secret.Name, ManifestOf(Key{}).Name)
	}))
	for i := range namespaces.Items {
		if namespace := &namespaces.Items[i]; known[namespace.Name] != nil {
			seen.Namespaces[namespace.Name] = namespace
		}
	}
	return seen, nil
}

// keep keeps the objects of the namespaces that begin with a prefix.
func keep[T any, P interface {
	*T
	client.Object
}](prefix string, into map[Key]P, items []T) {
	for i := range items {
		if object := P(&items[i]); strings.HasPrefix(object.GetNamespace(), prefix) {
			into[client.ObjectKeyFromObject(object)] = object
		}
	}
}

// View writes down all of a state that Muster may touch, in an order of its own, so
// that two states can be compared byte for byte. What only the API server writes, and
// Muster's notes about its own work, are left out.
func View(s State) string {
	documents := viewCalling(s)
	viewCharts(s, documents)
	add := func(kind string, object client.Object, parts map[string]any) {
		annotations := map[string]string{}
		for key, value := range object.GetAnnotations() {
			if key != domain+"/applied-hash" && key != domain+"/targeting" {
				annotations[key] = value
			}
		}
		parts["labels"], parts["annotations"] = object.GetLabels(), annotations
		parts["owners"], parts["finalizers"] = object.GetOwnerReferences(), object.GetFinalizers()
		documents[kind+" "+client.ObjectKeyFromObject(object).String()] = parts
	}
	for _, object := range s.Namespaces {
		add("Namespace", object, map[string]any{})
	}
	for _, object := range s.Classes {
		add("ClusterClass", object, map[string]any{"spec": object.Spec})
	}
	for _, object := range s.Clusters {
		add("Cluster", object, viewConditions(object))
	}
	for _, object := range s.FleetClusters {
		spec := plain(object.Spec)
		dropEmptied(spec["templateValues"])
		add("Fleet Cluster", object, map[string]any{"spec": spec})
	}
	for _, object := range s.Groups {
		add("ClusterGroup", object, map[string]any{"spec": object.Spec})
	}
	for _, object := range s.Mappings {
		add("BundleNamespaceMapping", object, map[string]any{
			"bundleSelector": object.BundleSelector, "namespaceSelector": object.NamespaceSelector,
		})
	}

	var text strings.Builder
	for _, name := range sortedKeys(documents) {
		body := plain(documents[name])
		for key, value := range body {
			if isEmpty(value) {
				delete(body, key)
			}
		}
		content, err := yaml.Marshal(body)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&text, "--- %s\n%s", name, content)
	}
	return text.String()
}

// dropEmptied drops the lists that exclusions have emptied: whether they are there says
// nothing.
func dropEmptied(node any) {
	switch typed := node.(type) {
	case map[string]any:
		for key, child := range typed {
			if dropEmptied(child); (key == "variables" || key == "overrides") && isEmpty(child) {
				delete(typed, key)
			}
		}
	case []any:
		for _, child := range typed {
			dropEmptied(child)
		}
	}
}

func isEmpty(value any) bool {
	switch typed := value.(type) {
	case nil:
		return true
	case string:
		return typed == ""
	case map[string]any:
		return len(typed) == 0
	case []any:
		return len(typed) == 0
	}
	return false
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
