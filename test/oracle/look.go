package oracle

import (
	"context"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
