package oracle

import (
	"context"
	"errors"
	"maps"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Observe reads the objects that Muster writes in the namespaces that begin with a prefix, and the Namespaces in
// known.
func Observe(ctx context.Context, reader client.Reader, prefix string, known map[string]*corev1.Namespace) (State, error) {
	seen, namespaces := NewState(), map[Key]*corev1.Namespace{}
	err := errors.Join(
		list(ctx, reader, prefix, &clusterv1.ClusterList{}, seen.Clusters),
		list(ctx, reader, prefix, &clusterv1.ClusterClassList{}, seen.Classes),
		list(ctx, reader, prefix, &fleetv1.ClusterList{}, seen.FleetClusters),
		list(ctx, reader, prefix, &fleetv1.ClusterGroupList{}, seen.Groups),
		list(ctx, reader, prefix, &fleetv1.BundleNamespaceMappingList{}, seen.Mappings),
		list(ctx, reader, prefix, &fleetv1.ClusterRegistrationList{}, seen.AgentInitiated.Registrations),
		list(ctx, reader, prefix, &corev1.SecretList{}, seen.AgentInitiated.Manifests),
		list(ctx, reader, "", &corev1.NamespaceList{}, namespaces),
	)
	maps.DeleteFunc(seen.AgentInitiated.Manifests, func(key Key, _ *corev1.Secret) bool { return !strings.HasSuffix(key.Name, manifestSuffix) })
	for key, namespace := range namespaces {
		if known[key.Name] != nil {
			seen.Namespaces[key.Name] = namespace
		}
	}
	return seen, err
}

// list reads the objects of the namespaces that begin with a prefix.
func list[T client.Object](ctx context.Context, reader client.Reader, prefix string, all client.ObjectList, into map[Key]T) error {
	if err := reader.List(ctx, all); err != nil {
		return err
	}
	return meta.EachListItem(all, func(item runtime.Object) error {
		if object := item.(T); strings.HasPrefix(object.GetNamespace(), prefix) {
			into[client.ObjectKeyFromObject(object)] = object
		}
		return nil
	})
}

// Documents describe the objects of a state, each under its kind and name.
type Documents map[string]string

// View describes all of a state that Muster may touch, so that two states can be compared.
// It leaves out what only the API server writes, and Muster's notes about its own work.
func View(s State) Documents {
	views := viewAgentInitiated(s)
	viewHelm(s, views)
	add := func(kind string, object client.Object, view map[string]any) {
		annotations := maps.Clone(object.GetAnnotations())
		maps.DeleteFunc(annotations, func(key, _ string) bool {
			return key == domain+"/applied-hash" || key == domain+"/targeting" || key == domain+"/retarget"
		})
		view["labels"], view["annotations"] = object.GetLabels(), annotations
		view["owners"], view["finalizers"] = object.GetOwnerReferences(), object.GetFinalizers()
		views[kind+" "+client.ObjectKeyFromObject(object).String()] = view
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
	documents := Documents{}
	for name, view := range views {
		body := plain(view)
		maps.DeleteFunc(body, func(_ string, value any) bool { return isEmpty(value) })
		documents[name] = asYAML(body)
	}
	return documents
}

func asYAML(value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // All of it came from JSON.
	}
	return string(text)
}

// dropEmptied drops lists that exclusions have emptied. Whether an empty list exists does not matter.
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
	case map[string]any:
		return len(typed) == 0
	case []any:
		return len(typed) == 0
	}
	return value == nil || value == ""
}
