package charts

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// living are the Clusters that exist.
type living map[string][]*clusterv1.Cluster

func newLiving(clusters []clusterv1.Cluster) living {
	all := living{}
	for i := range clusters {
		all[clusters[i].Namespace] = append(all[clusters[i].Namespace], &clusters[i])
	}
	return all
}

// isOwn reports whether a Fleet Cluster is that of a Cluster.
func (l living) isOwn(fleet *metav1.PartialObjectMetadata, cluster *clusterv1.Cluster) bool {
	relation, _ := stamp.RelationOf(fleet, cluster, func(name string, uid types.UID) bool {
		for _, other := range l[cluster.Namespace] {
			if (name == "" || other.Name == name) && (uid == "" || other.UID == uid) {
				return true
			}
		}
		return false
	})
	return relation == stamp.Own && stamp.IsOurs(fleet)
}

// newSelected returns a Cluster with the Fleet Cluster that it is pinned to, if that is its own:
// the pin is the word of whoever may write annotations.
func (r *reconciler) newSelected(ctx context.Context, cluster *clusterv1.Cluster, alive living) (*selected, error) {
	s := &selected{
		Cluster: cluster, paused: capiannotations.IsPaused(cluster, cluster), alive: alive,
		outcome: plan.Outcome{Cluster: client.ObjectKeyFromObject(cluster)},
	}
	if pin := stamp.PinOf(cluster.Annotations); pin.IsComplete() {
		fleet, err := r.fleetCluster(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: pin.ClusterName})
		if err != nil {
			return nil, err
		}
		if fleet != nil && alive.isOwn(fleet, cluster) {
			s.fleet = pin.ClusterName
			return s, nil
		}
	}
	s.fail(addonsv1.GetClusterFailedReason, "the Cluster is not in Fleet; see its condition FleetImported")
	return s, nil
}

func fleetClusterMetadata() *metav1.PartialObjectMetadata {
	fleet := &metav1.PartialObjectMetadata{}
	fleet.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Cluster"))
	return fleet
}

// fleetCluster reads a Fleet Cluster from the cache; nil if there is none.
func (r *reconciler) fleetCluster(ctx context.Context, key client.ObjectKey) (*metav1.PartialObjectMetadata, error) {
	fleet := fleetClusterMetadata()
	if err := r.Get(ctx, key, fleet, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading Fleet Cluster: %w", err)
	}
	return fleet, nil
}

func isReleased(fleet *metav1.PartialObjectMetadata) bool {
	return fleet != nil && fleet.Annotations[stamp.ReleasedAnnotation] == "true" && stamp.IsOurs(fleet)
}

// keep finds the targets that stay. To drop one is to uninstall: of a Cluster that is selected
// and has lost its pin, nobody has asked for it; and where a Fleet Cluster is released, its
// Cluster is being moved to another management cluster, or was, and the cluster lives on.
func (r *reconciler) keep(ctx context.Context, v *visit) error {
	v.stays = map[deploymentKey]bool{}
	known := map[deploymentKey]bool{}
	lost := map[string][]*selected{}
	for _, cluster := range v.clusters {
		if cluster.fleet != "" {
			known[deploymentKey{cluster.Namespace, cluster.fleet}] = true
		} else {
			lost[cluster.Namespace] = append(lost[cluster.Namespace], cluster)
		}
	}
	for i := range v.bundles {
		for _, target := range v.bundles[i].Spec.Targets {
			its := deploymentKey{v.bundles[i].Namespace, target.ClusterName}
			if known[its] {
				continue
			}
			known[its] = true
			fleet, err := r.fleetCluster(ctx, client.ObjectKey{Namespace: its.namespace, Name: its.fleetCluster})
			if err != nil {
				return err
			}
			if fleet != nil && !find(lost[its.namespace], fleet, v.deployments[its]) {
				v.stays[its] = isReleased(fleet)
			}
		}
	}
	return nil
}

// find finds the Cluster of a Fleet Cluster among those that have lost their pin.
func find(lost []*selected, fleet *metav1.PartialObjectMetadata, deployment *fleetv1.BundleDeployment) bool {
	for _, cluster := range lost {
		if cluster.fleet == "" && cluster.alive.isOwn(fleet, cluster.Cluster) {
			cluster.fleet, cluster.lost = fleet.Name, true
			cluster.outcome.Release = plan.ReleaseOf(deployment)
			return true
		}
	}
	return false
}

// isUnowned reports whether what is in the namespace of the HelmChartProxy is not to be deleted
// with it by the garbage collector: a Cluster there is being moved, and it may be moved, too.
func (r *reconciler) isUnowned(ctx context.Context, v *visit, namespace string) (bool, error) {
	if namespace != v.key.Namespace {
		return true, nil
	}
	for i := range v.bundles {
		if v.bundles[i].Namespace != namespace {
			continue
		}
		if released, err := r.released(ctx, &v.bundles[i]); err != nil || len(released) > 0 {
			return true, err
		}
	}
	return false, nil
}

// released returns the targets of a Bundle whose Fleet Cluster is released.
func (r *reconciler) released(ctx context.Context, bundle *fleetv1.Bundle) ([]fleetv1.BundleTarget, error) {
	var result []fleetv1.BundleTarget
	for _, target := range bundle.Spec.Targets {
		fleet, err := r.fleetCluster(ctx, client.ObjectKey{Namespace: bundle.Namespace, Name: target.ClusterName})
		if err != nil {
			return nil, err
		}
		if isReleased(fleet) {
			result = append(result, target)
		}
	}
	return result, nil
}
