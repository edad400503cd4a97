package sync

import (
	"context"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// visit is what is known of a Cluster while it is looked at, read once.
type visit struct {
	in      settings.Settings
	cluster *clusterv1.Cluster
	subject stamp.Subject
	// selected says whether the Cluster is to be imported; if not, why says what keeps it out.
	selected bool
	why      string
	paused   bool
	// fleet is the Fleet Cluster that the Cluster has, or whose name it is to have; nil
	// if there is none.
	fleet *fleetv1.Cluster
	// relation is what fleet is to the Cluster, and of a foreign one whose says whose it is.
	relation stamp.Relation
	whose    string
}

// isClaimed reports whether the Cluster is pinned, or would be had Muster imported it:
// CAAPF imports what either of two selectors matches, Muster what both match, and what
// it left stays until somebody decides.
func (v *visit) isClaimed() bool {
	return stamp.PinOf(v.cluster.Annotations).IsComplete() || v.has() && stamp.IsOurs(v.fleet)
}

// has reports whether the Cluster has a Fleet Cluster.
func (v *visit) has() bool { return v.fleet != nil && v.relation == stamp.Own }

// visit reads what is known of a Cluster.
func (r *clusterReconciler) visit(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (*visit, error) {
	namespace := namespaceMetadata()
	if err := r.Get(ctx, client.ObjectKey{Name: cluster.Namespace}, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	v := &visit{
		in: in, cluster: cluster,
		subject: stamp.Subject{
			Name:            cluster.Name,
			Labels:          cluster.Labels,
			Annotations:     cluster.Annotations,
			NamespaceLabels: namespace.Labels,
			Class:           cluster.GetClassKey(),
		},
		paused: capiannotations.IsPaused(cluster, cluster),
	}
	v.selected, v.why = stamp.Selected(in.Cluster, stamp.WithClassLabels(cluster.Labels, v.subject.Class), namespace.Labels)

	pin := stamp.PinOf(cluster.Annotations)
	if err := r.lookAt(ctx, v, pin.ClusterName); err != nil || v.has() {
		return v, err
	}
	// The pin is the word of whoever may write annotations. What belongs to the Cluster
	// already is the truth, under whatever name.
	name, err := r.existing(ctx, v, pin)
	if err != nil || name == "" {
		return v, err
	}
	return v, r.lookAt(ctx, v, name)
}

// lookAt reads the Fleet Cluster of a name.
func (r *clusterReconciler) lookAt(ctx context.Context, v *visit, name string) error {
	v.fleet, v.relation, v.whose = nil, stamp.Foreign, ""
	if name == "" {
		return nil
	}
	live := &fleetv1.Cluster{}
	found, err := r.applier.Store.Get(ctx, types.NamespacedName{Namespace: v.cluster.Namespace, Name: name}, live)
	if err != nil || !found {
		return err
	}
	v.fleet = live
	v.relation, v.whose = r.relationOf(ctx, live, v.cluster)
	return nil
}

// relationOf says what a Fleet Cluster is to a Cluster.
func (r *clusterReconciler) relationOf(ctx context.Context, fleetCluster *fleetv1.Cluster, cluster *clusterv1.Cluster) (stamp.Relation, string) {
	return stamp.RelationOf(fleetCluster, cluster, func(name string, uid types.UID) bool {
		if name == "" {
			return r.users.hasUID(ctx, cluster.Namespace, uid)
		}
		var other clusterv1.Cluster
		err := r.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: name}, &other, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Reading a Cluster from the cache failed; it is taken to exist", "cluster", name)
			return true // Nothing is taken over in doubt.
		}
		return err == nil && (uid == "" || other.UID == uid)
	})
}

// existing returns the name of the Fleet Cluster that already belongs to the Cluster
// under another name than its pin's: by the UID that it was made from, or, for a Cluster
// that is not pinned, by the name. Of several (CAAPF made another when naming changed) it
// is the one of the expected name, then the oldest.
func (r *clusterReconciler) existing(ctx context.Context, v *visit, pin stamp.Pin) (string, error) {
	origins := []string{originUID(v.cluster.UID)}
	if !pin.IsComplete() {
		origins = append(origins, originName(v.cluster.Name))
	}
	expected, _ := stamp.FleetName(v.in.Cluster, v.cluster.Name)
	for _, origin := range origins {
		var list fleetv1.ClusterList
		if err := r.List(ctx, &list, client.InNamespace(v.cluster.Namespace), client.MatchingFields{byOrigin: origin},
			client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing Fleet Clusters: %w", err)
		}
		own := slices.DeleteFunc(list.Items, func(candidate fleetv1.Cluster) bool {
			relation, _ := r.relationOf(ctx, &candidate, v.cluster)
			return !candidate.DeletionTimestamp.IsZero() || relation != stamp.Own
		})
		if len(own) == 0 {
			continue
		}
		best := slices.MinFunc(own, func(a, b fleetv1.Cluster) int {
			switch {
			case (a.Name == expected) != (b.Name == expected):
				return map[bool]int{true: -1, false: 1}[a.Name == expected]
			case !a.CreationTimestamp.Equal(&b.CreationTimestamp):
				return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
			default:
				return slices.Compare([]byte(a.Name), []byte(b.Name))
			}
		})
		return best.Name, nil
	}
	if pin.IsComplete() {
		return "", nil
	}
	found := &visit{in: v.in, cluster: v.cluster}
	if err := r.lookAt(ctx, found, expected); err != nil || !found.has() || !found.fleet.DeletionTimestamp.IsZero() ||
		!stamp.IsOurs(found.fleet) || !stamp.MayBeFrom(v.in.Cluster, found.fleet, v.cluster.Name) {
		return "", err
	}
	return expected, nil
}
