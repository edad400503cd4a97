package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// reader reads objects from the cache, and some past it.
type reader struct {
	client.Client
	// Live reads past the cache.
	Live client.Reader
	// checkIns maps the UID of each Fleet Cluster to the time of its agent's last check-in, for TrustInterval.
	checkIns *cache.Expiring
}

// read reads an object from the cache; nil if there is none.
func read[T client.Object](ctx context.Context, from client.Reader, key plan.Key, object T) (T, error) {
	var none T
	if err := from.Get(ctx, key, object, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		return none, nil
	} else if err != nil {
		return none, fmt.Errorf("reading %T %s: %w", object, key, err)
	}
	return object, nil
}

// ChartProxy returns a copy of a HelmChartProxy from the cache, without the Clusters in its status: there may be thousands,
// and each release reads it. It returns nil if there is none.
func (r *reader) ChartProxy(ctx context.Context, key plan.Key) (*addonsv1.HelmChartProxy, error) {
	cached, err := read(ctx, r, key, &addonsv1.HelmChartProxy{})
	if cached == nil {
		return nil, err
	}
	its := *cached
	its.Status.MatchingClusters = nil
	return its.DeepCopy(), nil
}

// Bundle returns a Bundle from the cache; nil if there is none.
func (r *reader) Bundle(ctx context.Context, key plan.Key) (*fleetv1.Bundle, error) {
	return read(ctx, r, key, &fleetv1.Bundle{})
}

// FleetCluster returns the metadata of a Fleet Cluster from the cache; nil if there is none.
func (r *reader) FleetCluster(ctx context.Context, key plan.Key) (*metav1.PartialObjectMetadata, error) {
	return read(ctx, r, key, FleetClusterMetadata())
}

// TrustInterval is how long the program believes what it last read or wrote of an object that it does not watch: a Fleet
// Cluster, and a Secret, which a user or an earlier state of etcd may have changed or deleted.
const TrustInterval = time.Minute

// LastSeen returns when the agent of a Fleet Cluster checked in last; zero if Fleet has not noted that. Check-ins trigger
// no event: the cache has only the metadata of Fleet Clusters.
func (r *reader) LastSeen(ctx context.Context, key plan.Key) (time.Time, error) {
	cached, err := r.FleetCluster(ctx, key)
	if err != nil || cached == nil {
		return time.Time{}, err
	}
	if seen, found := r.checkIns.Get(cached.UID); found {
		return seen.(time.Time), nil
	}
	fleet := &fleetv1.Cluster{}
	if err := r.Live.Get(ctx, key, fleet); client.IgnoreNotFound(err) != nil {
		return time.Time{}, fmt.Errorf("reading Fleet Cluster %s: %w", key, err)
	}
	seen := fleet.Status.Agent.LastSeen.Time
	r.checkIns.Set(fleet.UID, seen, TrustInterval)
	return seen, nil
}

// IsOwnFleetCluster reports whether a Fleet Cluster exists and belongs to a Cluster.
func (r *reader) IsOwnFleetCluster(ctx context.Context, cluster *clusterv1.Cluster, name string) (bool, error) {
	fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: cluster.Namespace, Name: name})
	if err != nil || fleet == nil {
		return false, err
	}
	var clusters clusterv1.ClusterList
	relation, _ := stamp.RelationOf(fleet, cluster, func(name string, uid types.UID) bool {
		if clusters.Items == nil { // Needed only for Fleet Clusters with several owners.
			err = r.List(ctx, &clusters, client.InNamespace(cluster.Namespace), client.UnsafeDisableDeepCopy)
		}
		for i := range clusters.Items {
			if its := &clusters.Items[i]; (name == "" || its.Name == name) && (uid == "" || its.UID == uid) {
				return true
			}
		}
		return false
	})
	return relation == stamp.Own && stamp.IsOurs(fleet), err
}

// ClusterOf returns the Cluster that a Fleet Cluster may be of.
func ClusterOf(fleet client.Object) plan.Key {
	return plan.Key{Namespace: fleet.GetNamespace(), Name: cmp.Or(stamp.OriginOf(fleet).Name, fleet.GetName())}
}

// FleetClusterMetadata returns an empty Fleet Cluster, of which only the metadata is read.
func FleetClusterMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Cluster"}}
}

// LiveFleetCluster returns the metadata of a Fleet Cluster, nil if there is none, and whether it is released: it lives on
// without its Cluster, which is being moved to another management cluster, or was. It reads past the cache, which may show
// that a Cluster is gone before it shows that its Fleet Cluster was released: Fleet would uninstall the release from a
// cluster that lives on.
func (r *reader) LiveFleetCluster(ctx context.Context, key plan.Key) (fleet *metav1.PartialObjectMetadata, isReleased bool, err error) {
	fleet = FleetClusterMetadata()
	if err := r.Live.Get(ctx, key, fleet); apierrors.IsNotFound(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("reading Fleet Cluster %s: %w", key, err)
	}
	return fleet, fleet.Annotations[stamp.ReleasedAnnotation] == "true" && stamp.IsOurs(fleet), nil
}

// Deployment returns the BundleDeployment of a Bundle for a Fleet Cluster; nil if there is none. Only Fleet and
// the agent write to its namespace.
func (r *reader) Deployment(ctx context.Context, bundle plan.Key, fleetCluster string) (*fleetv1.BundleDeployment, error) {
	key := plan.Key{Namespace: stamp.FleetNamespace(bundle.Namespace, fleetCluster), Name: bundle.Name}
	deployment, err := read(ctx, r, key, &fleetv1.BundleDeployment{})
	if err != nil || deployment == nil {
		return nil, err
	}
	// Fleet shortens long names, so another Fleet Cluster may have the same namespace.
	if its := deployment.Labels[fleetv1.ClusterNamespaceLabel]; its != "" && its != bundle.Namespace {
		return nil, nil
	}
	return deployment, nil
}
