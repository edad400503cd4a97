package sync

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/muster-fleet/muster/internal/sync/apply"
)

// unseenInterval is how often is looked for writes that the cache never showed.
const unseenInterval = 3 * time.Second

type objectEvents = chan event.TypedGenericEvent[client.Object]

// unseen brings back, by an event of our own, what we wrote and no event was seen of.
type unseen struct {
	store                                     *apply.Store
	clusters, fleetClusters, groups, mappings objectEvents
}

func newUnseen(store *apply.Store) *unseen {
	return &unseen{store, make(objectEvents), make(objectEvents), make(objectEvents), make(objectEvents)}
}

// Start looks until the context ends. It is a manager's Runnable.
func (u *unseen) Start(ctx context.Context) error {
	ticker := time.NewTicker(unseenInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, object := range u.store.Unseen() {
			ctrl.LoggerFrom(ctx).Info("Looking again at a write that was not seen", "object", client.ObjectKeyFromObject(object).String())
			select {
			case <-ctx.Done():
				return nil
			case u.of(object) <- event.TypedGenericEvent[client.Object]{Object: object}:
			}
		}
	}
}

func (u *unseen) of(object client.Object) objectEvents {
	switch object.(type) {
	case *clusterv1.Cluster:
		return u.clusters
	case *fleetv1.Cluster:
		return u.fleetClusters
	case *fleetv1.ClusterGroup:
		return u.groups
	default:
		return u.mappings
	}
}
