// Package oracle is the model: from the contract alone, it computes what Muster must make of any state of a
// management cluster. It shares no code with Muster, and spells out every name, key and default once more.
//
// Converge is all of it. It takes everything that Muster reads and writes, and returns the same at the moment when
// Muster has nothing left to do, if no other client writes. The past matters only through the state: the pin on a
// Cluster, and objects that are retained and therefore stay as they are.
package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AsRequested returns a Cluster as its author wrote it: without anything that Muster wrote on it.
func AsRequested(cluster *clusterv1.Cluster) *clusterv1.Cluster {
	requested := cluster.DeepCopy()
	for _, key := range []string{classLabel, classNsLabel} {
		delete(requested.Labels, key)
	}
	for _, key := range []string{fullClass, ownedBy, pinnedName} {
		delete(requested.Annotations, key)
	}
	for _, name := range ourConditions {
		meta.RemoveStatusCondition(&requested.Status.Conditions, name)
	}
	return requested
}

// Missing names the objects that one state has and another lacks: objects of Muster, and the Clusters and classes
// that they are made from.
func Missing(want, got State) []string {
	return slices.Concat(
		without("Cluster", want.Clusters, got.Clusters, nil),
		without("ClusterClass", want.Classes, got.Classes, nil),
		missing(want, got, nil),
	)
}

// Extra names Muster's objects that the second state has and the first lacks.
func Extra(want, got State) []string {
	return slices.Concat(missing(got, want, isOurs), got.Helm.Wrong, got.Helm.Garbage, got.Helm.LeftOver,
		without("ClusterRegistration", got.AgentInitiated.Registrations, nil, func(asked client.Object) bool {
			return isOurs(asked) && !slices.ContainsFunc(asked.GetOwnerReferences(), func(owner metav1.OwnerReference) bool {
				return want.FleetClusters[Key{Namespace: asked.GetNamespace(), Name: owner.Name}] != nil
			})
		}),
	)
}

func missing(want, got State, counts func(client.Object) bool) []string {
	return slices.Concat(
		without("Fleet Cluster", want.FleetClusters, got.FleetClusters, counts),
		without("ClusterGroup", want.Groups, got.Groups, counts),
		without("BundleNamespaceMapping", want.Mappings, got.Mappings, counts),
		without("manifest", want.AgentInitiated.Manifests, got.AgentInitiated.Manifests, counts),
		without("carrier of", want.Helm.Carriers, got.Helm.Carriers, nil),
		without("HelmReleaseProxies of", want.Helm.ReleaseProxies, got.Helm.ReleaseProxies, nil),
	)
}

// without names the objects that one map has and another lacks. If counts is set, it names only objects that counts
// accepts.
func without[K interface {
	comparable
	fmt.Stringer
}, T any](kind string, all, others map[K]T, counts func(client.Object) bool) []string {
	var names []string
	for key, value := range all {
		if _, there := others[key]; !there && (counts == nil || counts(any(value).(client.Object))) {
			names = append(names, kind+" "+key.String())
		}
	}
	slices.Sort(names)
	return names
}

// Diff returns the differences between the documents of two views, or "" if they are equal.
func Diff(want, got Documents) string {
	var text strings.Builder
	both := Documents{}
	maps.Copy(both, want)
	maps.Copy(both, got)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		if want[name] != got[name] {
			fmt.Fprintf(&text, "@@ %s @@ -expected +seen\n%s\n", name, cmp.Diff(want[name], got[name]))
		}
	}
	return text.String()
}
