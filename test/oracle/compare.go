// Package oracle says, from the contract and from nothing else, what Muster has to
// make of any state of a management cluster. It shares no code with what it judges:
// every name, key and default is spelled out once more.
//
// Settle is the whole of it: given everything that Muster reads and writes, it
// returns the same at the moment Muster comes to rest, if nobody else does anything.
// The past matters only through what lies in the state: the pin on a Cluster, and
// objects that are frozen and therefore stay as they are.
package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"

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

// linesAround is how many equal lines are shown around a difference.
const linesAround = 3

// Diff returns a unified diff of two views, or "" if they are equal.
func Diff(want, got string) string {
	if want == got {
		return ""
	}
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var lines, headings []string
	heading := ""
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			if strings.HasPrefix(a[i], "--- ") {
				heading = a[i]
			}
			lines = append(lines, " "+a[i])
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			lines = append(lines, "-"+a[i])
			i++
		default:
			lines = append(lines, "+"+b[j])
			j++
		}
		headings = append(headings, heading)
	}
	return hunks(lines, headings)
}

// hunks leaves out what is equal and far from any difference.
func hunks(lines, headings []string) string {
	var text strings.Builder
	text.WriteString("--- expected\n+++ seen\n")
	last := -1
	for i := range lines {
		near := false
		for k := max(0, i-linesAround); k <= min(len(lines)-1, i+linesAround); k++ {
			near = near || lines[k][0] != ' '
		}
		if !near {
			continue
		}
		if last != i-1 || i == 0 {
			fmt.Fprintf(&text, "@@ %s @@\n", strings.TrimPrefix(headings[i], "--- "))
		}
		fmt.Fprintln(&text, lines[i])
		last = i
	}
	return text.String()
}
