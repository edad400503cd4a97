package apply

import (
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// BelongsTo reports whether a Fleet Cluster is that of a CAPI Cluster of its namespace;
// if not, why says whose it is and how to hand it over. It looks at metadata only. The
// webhook refuses by it, and the syncer takes nothing over by it.
func BelongsTo(fleetCluster, cluster client.Object) (ours bool, why string) {
	handOver := fmt.Sprintf("; delete it, or annotate it %s=true to hand it over", stamp.AdoptAnnotation)
	for _, owner := range fleetCluster.GetOwnerReferences() {
		if owner.UID != "" && owner.UID == cluster.GetUID() {
			return true, ""
		}
	}
	if fleetCluster.GetAnnotations()[stamp.AdoptAnnotation] == "true" {
		return true, ""
	}
	if from := fleetCluster.GetAnnotations()[desired.ImportedFromAnnotation]; from != "" && from != cluster.GetName() {
		return false, fmt.Sprintf("Fleet Cluster %q is that of Cluster %q%s", fleetCluster.GetName(), from, handOver)
	}
	for _, owner := range fleetCluster.GetOwnerReferences() {
		if owner.Kind == clusterv1.ClusterKind && owner.Name != cluster.GetName() {
			return false, fmt.Sprintf("Fleet Cluster %q belongs to Cluster %q%s", fleetCluster.GetName(), owner.Name, handOver)
		}
	}
	if IsOurs(fleetCluster) {
		return true, ""
	}
	return false, fmt.Sprintf("Fleet Cluster %q was made by somebody else%s", fleetCluster.GetName(), handOver)
}
