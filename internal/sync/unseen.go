package sync

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/sync/apply"
)

// unseenInterval is how often is looked for writes that the cache never showed.
const unseenInterval = 3 * time.Second

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
	return feed(ctx, unseenInterval, u.store.Unseen, func(object client.Object) objectEvents {
		ctrl.LoggerFrom(ctx).Info("Looking again at a write that was not seen", "object", client.ObjectKeyFromObject(object).String())
		return u.of(object)
	})
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
