package observed

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// unseenInterval is how often we look for writes that the cache never delivered.
const unseenInterval = 3 * time.Second

// Unseen brings back, by an event of our own, objects whose last write no event has shown.
type Unseen struct {
	store *Store
	// Clusters and the others bring back objects of their kind.
	Clusters, FleetClusters, Groups, Mappings chan event.GenericEvent
}

// NewUnseen returns Unseen for the writes that a Store remembers.
func NewUnseen(store *Store) *Unseen {
	channel := func() chan event.GenericEvent { return make(chan event.GenericEvent) }
	return &Unseen{store, channel(), channel(), channel(), channel()}
}

// Start looks until the context ends. It is a manager's Runnable.
func (u *Unseen) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for _, object := range u.store.Unseen() {
			ctrl.LoggerFrom(ctx).Info("Looking again at what no event may have shown", "object", client.ObjectKeyFromObject(object).String())
			select {
			case <-ctx.Done():
				return
			case u.of(object) <- event.GenericEvent{Object: object}:
			}
		}
	}, unseenInterval)
	return nil
}

func (u *Unseen) of(object client.Object) chan event.GenericEvent {
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
