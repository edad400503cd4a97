// Package source reads the objects of a graph: from an API server, once or continuously, and from files. It
// has the rights of the person who runs it: it notes the kinds that they may not read, and shows the
// rest.
package source

import (
	"errors"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/view"
)

// feed is a kind of the graph's objects.
type feed struct {
	kind view.Kind
	list client.ObjectList
	// by is the project that serves the kind.
	by string
	// wide means that the kind has no namespaces.
	wide bool
	// optional means that the kind may not be served.
	optional bool

	// move replaces the objects of a scope with newly read ones.
	move func(scope Scope, from, to *view.Objects)
	put  func(*view.Objects, client.Object)
	drop func(*view.Objects, types.NamespacedName)
}

// feeds returns all feeds. Bundles are not among them: their resources are large, and BundleDeployments
// have everything that the graph shows.
func feeds() []feed {
	return []feed{
		{
			kind: view.Config, list: &addonsv1.FleetAddonConfigList{}, by: "Muster", wide: true,
			move: func(_ Scope, from, to *view.Objects) { to.Config = from.Config },
			put: func(o *view.Objects, object client.Object) {
				if config := object.(*addonsv1.FleetAddonConfig); config.Name == addonsv1.FleetAddonConfigName {
					o.Config = config
				}
			},
			drop: func(o *view.Objects, key types.NamespacedName) {
				if key.Name == addonsv1.FleetAddonConfigName {
					o.Config = nil
				}
			},
		},
		{
			kind: view.Namespace, list: metadataList(corev1.SchemeGroupVersion.WithKind("NamespaceList")), by: "Kubernetes", wide: true,
			move: func(_ Scope, from, to *view.Objects) { to.Namespaces = from.Namespaces },
			put: func(o *view.Objects, object client.Object) {
				labels := object.GetLabels()
				if labels == nil {
					labels = map[string]string{}
				}
				o.Namespaces[object.GetName()] = labels
			},
			drop: func(o *view.Objects, key types.NamespacedName) { delete(o.Namespaces, key.Name) },
		},
		{
			kind: view.ClusterClass, list: metadataList(clusterv1.GroupVersion.WithKind("ClusterClassList")), by: "Cluster API",
			move: func(scope Scope, from, to *view.Objects) { to.Classes = merged(scope, from.Classes, to.Classes) },
			put:  func(o *view.Objects, object client.Object) { o.Classes[client.ObjectKeyFromObject(object)] = true },
			drop: func(o *view.Objects, key types.NamespacedName) { delete(o.Classes, key) },
		},
		{
			kind: view.Cluster, list: &clusterv1.ClusterList{}, by: "Cluster API",
			move: func(_ Scope, from, to *view.Objects) { to.Clusters = from.Clusters },
			put: func(o *view.Objects, object client.Object) {
				o.Clusters[client.ObjectKeyFromObject(object)] = view.CutCluster(object.(*clusterv1.Cluster))
			},
			drop: func(o *view.Objects, key types.NamespacedName) { delete(o.Clusters, key) },
		},
		{
			kind: view.FleetCluster, list: &fleetv1.ClusterList{}, by: "Fleet",
			move: func(_ Scope, from, to *view.Objects) { to.FleetClusters = from.FleetClusters },
			put: func(o *view.Objects, object client.Object) {
				o.FleetClusters[client.ObjectKeyFromObject(object)] = view.CutFleetCluster(object.(*fleetv1.Cluster))
			},
			drop: func(o *view.Objects, key types.NamespacedName) { delete(o.FleetClusters, key) },
		},
		{
			kind: view.ClusterGroup, list: &fleetv1.ClusterGroupList{}, by: "Fleet",
			move: func(_ Scope, from, to *view.Objects) { to.Groups = from.Groups },
			put: func(o *view.Objects, object client.Object) {
				o.Groups[client.ObjectKeyFromObject(object)] = cutGroup(object.(*fleetv1.ClusterGroup))
			},
			drop: func(o *view.Objects, key types.NamespacedName) { delete(o.Groups, key) },
		},
		{
			kind: view.Mapping, list: &fleetv1.BundleNamespaceMappingList{}, by: "Fleet",
			move: func(scope Scope, from, to *view.Objects) { to.Mappings = merged(scope, from.Mappings, to.Mappings) },
			put: func(o *view.Objects, object client.Object) {
				o.Mappings[client.ObjectKeyFromObject(object)] = object.(*fleetv1.BundleNamespaceMapping)
			},
			drop: func(o *view.Objects, key types.NamespacedName) { delete(o.Mappings, key) },
		},
		{
			kind: view.HelmChartProxy, list: &addonsv1.HelmChartProxyList{}, by: "Muster", optional: true,
			move: func(_ Scope, from, to *view.Objects) { to.Proxies = from.Proxies },
			put: func(o *view.Objects, object client.Object) {
				o.Proxies[client.ObjectKeyFromObject(object)] = view.CutProxy(object.(*addonsv1.HelmChartProxy))
			},
			drop: func(o *view.Objects, key types.NamespacedName) { delete(o.Proxies, key) },
		},
	}
}

// isAbsent reports whether an error means that an optional kind is not served.
func (f feed) isAbsent(err error) bool {
	return f.optional && (meta.IsNoMatchError(err) || errors.Is(err, errNotInFile))
}

// merged returns the first map's objects within a scope, and the second's beyond it.
func merged[V any](scope Scope, within, beyond map[types.NamespacedName]V) map[types.NamespacedName]V {
	if scope.Namespace == "" {
		return within
	}
	result := map[types.NamespacedName]V{}
	for key, value := range within {
		if key.Namespace == scope.Namespace {
			result[key] = value
		}
	}
	for key, value := range beyond {
		if key.Namespace != scope.Namespace {
			result[key] = value
		}
	}
	return result
}

// cutGroup drops the status, which names each failing Cluster.
func cutGroup(in *fleetv1.ClusterGroup) *fleetv1.ClusterGroup {
	result := &fleetv1.ClusterGroup{Spec: in.Spec}
	result.Namespace, result.Name, result.Labels = in.Namespace, in.Name, in.Labels
	return result
}

func metadataList(kind schema.GroupVersionKind) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	return list
}

// each visits the items of a list.
func each(list client.ObjectList, visit func(client.Object)) {
	// All items are objects, as values or pointers.
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if object, ok := item.(client.Object); ok {
			visit(object)
		}
		return nil
	})
}

// errNotInFile means that a file has no object of a kind, which says nothing about the cluster.
var errNotInFile = errors.New("none in the file")

// unreadable returns a note that says why objects could not be read; empty for any other error, which
// ends the program.
func unreadable(err error, by string) string {
	switch {
	case errors.Is(err, errNotInFile):
		return errNotInFile.Error()
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return "you may not read them"
	case meta.IsNoMatchError(err):
		return fmt.Sprintf("not served here; is %s installed?", by)
	case apierrors.IsResourceExpired(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err):
		return "the list was cut short, so not all are shown: " + err.Error()
	default:
		return ""
	}
}
