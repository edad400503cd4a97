package apply

import (
	"encoding/json"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/sync/desired"
)

// leavesClientID reports whether a clientID that we have drawn stays where none is wanted, as
// Fleet is to draw its own: one that was written when a Fleet Cluster was taken over is not part
// of what was applied, so an apply without it leaves it. It takes the object whole.
func leavesClientID(want, whole client.Object) bool {
	wanted, isFleetCluster := want.(*fleetv1.Cluster)
	if !isFleetCluster || wanted.Spec.ClientID != "" || whole.(*fleetv1.Cluster).Spec.ClientID == "" {
		return false
	}
	ours := false
	for _, entry := range whole.GetManagedFields() {
		if !hasClientID(entry) {
			continue
		}
		if entry.Manager != desired.FieldManager {
			return false
		}
		ours = true
	}
	return ours
}

func hasClientID(entry metav1.ManagedFieldsEntry) bool {
	var fields struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
		return false
	}
	_, has := fields.Spec["f:clientID"]
	return has
}
