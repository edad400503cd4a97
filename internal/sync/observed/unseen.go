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

// Unseen brings back, by an event of our own, objects whose last write no event has shown, and
// those of which an event of somebody else's write was taken for ours.
type Unseen struct {
	store  *Store
	echoes *Echoes
	// Clusters and the others bring back objects of their kind.
	Clusters, FleetClusters, Groups, Mappings queue.Events
}

// NewUnseen returns Unseen for the writes that a Store and Echoes remember.
func NewUnseen(store *Store, echoes *Echoes) *Unseen {
	return &Unseen{store, echoes, make(queue.Events), make(queue.Events), make(queue.Events), make(queue.Events)}
}

// Start looks until the context ends. It is a manager's Runnable.
func (u *Unseen) Start(ctx context.Context) error {
	due := func() []client.Object { return append(u.store.Unseen(), u.echoes.Others()...) }
	return queue.Feed(ctx, unseenInterval, due, func(object client.Object) queue.Events {
		ctrl.LoggerFrom(ctx).Info("Looking again at what no event may have shown", "object", client.ObjectKeyFromObject(object).String())
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
