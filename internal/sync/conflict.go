package sync

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/sync/apply"
)

// belongsTo reports whether a Fleet Cluster is that of a CAPI Cluster, and why not. The
// webhook refuses at create what this finds later.
func belongsTo(fleetCluster *fleetv1.Cluster, cluster *clusterv1.Cluster) (ours bool, why string) {
	return apply.BelongsTo(fleetCluster, cluster)
}
