package observed

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/sync/queue"
)

// unseenInterval is how often we look for writes that the cache never delivered.
const unseenInterval = 3 * time.Second

// Unseen brings back, by an event of our own, objects whose last write no event has shown.
type Unseen struct {
	store *Store
	// Clusters and the others bring back objects of their kind.
	Clusters, FleetClusters, Groups, Mappings queue.Events
}

// NewUnseen returns Unseen for the writes that a Store remembers.
func NewUnseen(store *Store) *Unseen {
	return &Unseen{store, make(queue.Events), make(queue.Events), make(queue.Events), make(queue.Events)}
}

// Start looks until the context ends. It is a manager's Runnable.
func (u *Unseen) Start(ctx context.Context) error {
	return queue.Feed(ctx, unseenInterval, u.store.Unseen, func(object client.Object) queue.Events {
		ctrl.LoggerFrom(ctx).Info("Looking again at a write that was not seen", "object", client.ObjectKeyFromObject(object).String())
		return u.of(object)
	})
}

func (u *Unseen) of(object client.Object) queue.Events {
	switch object.(type) {
	case *clusterv1.Cluster:
		return u.Clusters
	case *fleetv1.Cluster:
		return u.FleetClusters
	case *fleetv1.ClusterGroup:
		return u.Groups
	default:
		return u.Mappings
	}
}
