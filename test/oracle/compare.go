package oracle

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AsRequested returns a Cluster as somebody asked for it: without anything that
// Muster wrote on it.
func AsRequested(cluster *clusterv1.Cluster) *clusterv1.Cluster {
	requested := cluster.DeepCopy()
	for _, key := range []string{classLabel, classNsLabel} {
		delete(requested.Labels, key)
	}
	for _, key := range []string{fullClass, ownedBy, pinnedName} {
		delete(requested.Annotations, key)
	}
	meta.RemoveStatusCondition(&requested.Status.Conditions, importedCondition)
	meta.RemoveStatusCondition(&requested.Status.Conditions, bundlesCondition)
	meta.RemoveStatusCondition(&requested.Status.Conditions, manifestCondition)
	return requested
}

// Missing names what is in one state and not in another: objects of Fleet, and the
// Clusters and classes that they are made from.
func Missing(want, got State) []string {
	return slices.Concat(
		without("Cluster", want.Clusters, got.Clusters, nil),
		without("ClusterClass", want.Classes, got.Classes, nil),
		without("Fleet Cluster", want.FleetClusters, got.FleetClusters, nil),
		without("ClusterGroup", want.Groups, got.Groups, nil),
		without("BundleNamespaceMapping", want.Mappings, got.Mappings, nil),
		without("manifest", want.Calling.Manifests, got.Calling.Manifests, nil),
		uncarried(want, got),
	)
}

// uncarried names what Fleet is to be handed for HelmChartProxies and is not.
func uncarried(want, got State) []string {
	var names []string
	for of := range want.Charts.Carriers {
		if got.Charts.Carriers[of] == nil {
			names = append(names, of.String())
		}
	}
	for proxy := range want.Charts.Mirrors {
		if got.Charts.Mirrors[proxy] == nil {
			names = append(names, "HelmReleaseProxies of "+proxy.String())
		}
	}
	slices.Sort(names)
	return names
}

// Extra names the objects of Muster that are in the second state and not in the first.
func Extra(want, got State) []string {
	return slices.Concat(
		uncarried(got, want), got.Charts.Wrong, got.Charts.Garbage,
		without("Fleet Cluster", got.FleetClusters, want.FleetClusters, isOurs),
		without("ClusterGroup", got.Groups, want.Groups, isOurs),
		without("BundleNamespaceMapping", got.Mappings, want.Mappings, isOurs),
		without("manifest", got.Calling.Manifests, want.Calling.Manifests, isOurs),
		without("ClusterRegistration", got.Calling.Registrations, nil, func(asked client.Object) bool {
			return isOurs(asked) && !slices.ContainsFunc(asked.GetOwnerReferences(), func(owner metav1.OwnerReference) bool {
				return want.FleetClusters[Key{Namespace: asked.GetNamespace(), Name: owner.Name}] != nil
			})
		}),
	)
}

// without names the objects of one map that are not in another.
func without[T client.Object](kind string, all, others map[Key]T, counts func(client.Object) bool) []string {
	var names []string
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b Key) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	}) {
		if _, there := others[key]; !there && (counts == nil || counts(all[key])) {
			names = append(names, kind+" "+key.String())
		}
	}
	return names
}
