package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/stamp"
)

// uses lists the Clusters that use a class of another namespace.
func (a *audit) uses() {
	for _, clusters := range a.users {
		for _, cluster := range clusters {
			class := cluster.GetClassKey()
			a.report.Clusters = append(a.report.Clusters, Use{
				Namespace: cluster.Namespace, Name: cluster.Name, Class: class.Name, ClassNamespace: class.Namespace,
				Created: cluster.CreationTimestamp.Time, Asked: a.asked(cluster),
			})
		}
	}
}

func (a *audit) asked(cluster *clusterv1.Cluster) Asked {
	switch {
	case a.Unread[Webhook] != "":
		return AskedUnknown
	case a.AskedSince == nil:
		return AskedNobody
	case cluster.CreationTimestamp.Time.Before(*a.AskedSince):
		return AskedOlder
	default:
		return AskedYes
	}
}

// leftovers lists the released Fleet Clusters whose Cluster is gone.
func (a *audit) leftovers() {
	if a.Unread[Clusters] != "" {
		return
	}
	for _, clusters := range a.copies {
		for _, cluster := range clusters {
			if !isReleased(cluster) || !cluster.DeletionTimestamp.IsZero() || a.clusterOf(cluster) != nil {
				continue
			}
			a.report.Released = append(a.report.Released, Leftover{
				Namespace: cluster.Namespace, Name: cluster.Name, Cluster: stamp.OriginOf(cluster).Name, Created: cluster.CreationTimestamp.Time,
				Delete: fmt.Sprintf("kubectl -n %s delete clusters.fleet.cattle.io %s", cluster.Namespace, cluster.Name),
			})
		}
	}
}

// needed is what decides whether a user is rightful.
var needed = []Kind{Configs, Clusters, Classes, FleetClusters}

// undecided reports whether something unread could give a mapping a rightful user.
func (a *audit) undecided() bool {
	return a.Unread[Namespaces] != "" && !a.Settings.Cluster.NamespaceSelector.Empty() ||
		slices.ContainsFunc(needed, func(kind Kind) bool { return a.Unread[kind] != "" })
}

// notes says what was not read, and what is therefore unknown.
func (a *audit) notes() {
	for _, kind := range slices.Sorted(maps.Keys(a.Unread)) {
		a.report.Notes = append(a.report.Notes, fmt.Sprintf("%s: %s", kind, a.Unread[kind]))
	}
	var silent []string
	if a.Unread[Mappings] != "" || a.undecided() {
		silent = append(silent, "whether a mapping has a rightful user")
	}
	if a.Unread[Clusters] != "" {
		silent = append(silent, "which Clusters use a class of another namespace")
	}
	if a.Unread[Clusters] != "" || a.Unread[FleetClusters] != "" {
		silent = append(silent, "which Fleet Clusters are left over")
	}
	if len(silent) > 0 {
		a.report.Notes = append(a.report.Notes, "it cannot be said "+strings.Join(silent, ", nor "))
	}
	if a.Unread[Configs] == "" && !a.Settings.Cluster.Enabled {
		a.report.Notes = append(a.report.Notes, "spec.cluster.enabled of the FleetAddonConfig is false: nothing is changed; users are judged as if it were true")
	}
}
