package sync

import (
	"context"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/keymutex"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// groupReconciler keeps ClusterGroups: one for each ClusterClass, under its name,
// and one for each class that claimed Clusters of another namespace use.
type groupReconciler struct {
	client.Reader
	*apply.Applier
	users    users
	settings *settingsReader
	// watchFilter limits which classes are looked at; empty for all.
	watchFilter string
	// busy keeps apart those who look at the same group: its own events, and the
	// Clusters that need it. The second finds in the store what the first has written.
	busy keymutex.KeyMutex
}

// Reconcile makes one ClusterGroup as it should be, or deletes it.
func (r *groupReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.busy.LockKey(req.String())
	defer func() { _ = r.busy.UnlockKey(req.String()) }() // It fails never.
	current, err := r.settings.current(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	var group fleetv1.ClusterGroup
	found, err := r.Store.Get(ctx, req.NamespacedName, &group)
	if err != nil {
		return ctrl.Result{}, err
	}
	var live client.Object
	if found {
		live = &group
		if !group.DeletionTimestamp.IsZero() {
			return ctrl.Result{}, nil // Its deletion brings us back.
		}
	}

	class, err := classMetadata(ctx, r.Reader, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if class != nil {
		if !class.DeletionTimestamp.IsZero() || !current.Class.Enabled || !isWatched(class, r.watchFilter) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, r.write(ctx, desired.ClassGroup(current, class), live, current.Class.PatchResource)
	}

	if !current.Cluster.Enabled {
		return ctrl.Result{}, nil // Turned off: what is there stays as it is.
	}
	if current.Cluster.ApplyClassGroup {
		classKey, err := r.users.class(ctx, req.Namespace, byGroup, req.Name)
		if err != nil {
			return ctrl.Result{}, err
		}
		if classKey.Name != "" {
			class, err := classMetadata(ctx, r.Reader, classKey)
			if err != nil {
				return ctrl.Result{}, err
			}
			return ctrl.Result{}, r.write(ctx, desired.CrossNamespaceGroup(req.Namespace, classKey, class), live, current.Cluster.PatchResource)
		}
		awaited, err := r.users.awaited(ctx, current, req.Namespace, func(cluster *clusterv1.Cluster) bool {
			return slices.Contains(groupNameOf(wishOf(cluster)), req.Name)
		})
		if err != nil || awaited {
			return ctrl.Result{}, err // Its claim brings us back.
		}
	}
	// Nobody uses it. A class's group goes with its class, through the owner
	// reference or here; one with setOwnerReferences off stays like the Fleet Cluster.
	if found && apply.IsOurs(&group) && (isCrossNamespaceGroup(&group) || len(group.OwnerReferences) > 0) {
		return ctrl.Result{}, client.IgnoreNotFound(r.Delete(ctx, &group))
	}
	return ctrl.Result{}, nil
}

func (r *groupReconciler) write(ctx context.Context, want, live client.Object, patch bool) error {
	if live != nil && !apply.IsOurs(live) {
		ctrl.LoggerFrom(ctx).Info("Left alone a ClusterGroup that somebody else made; rename it, or annotate it to hand it over",
			"object", client.ObjectKeyFromObject(live).String())
		return nil
	}
	_, err := r.Apply(ctx, want, live, patch)
	if apply.IsAbsent(err) {
		return nil // The namespace is going, and the group with it.
	}
	return err
}

// isCrossNamespaceGroup reports whether a group of ours is derived from Clusters of
// its namespace that use a class of another.
func isCrossNamespaceGroup(group *fleetv1.ClusterGroup) bool {
	namespace := group.Labels[stamp.ClassNamespaceLabel]
	return namespace != "" && namespace != group.Namespace
}

// classMetadata returns the metadata of a ClusterClass, or nil if there is none.
func classMetadata(ctx context.Context, reader client.Reader, key client.ObjectKey) (*desired.Class, error) {
	if key.Name == "" {
		return nil, nil
	}
	class := &desired.Class{}
	class.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind))
	if err := reader.Get(ctx, key, class); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ClusterClass %s: %w", key, err)
	} else if err != nil {
		return nil, nil
	}
	return class, nil
}

func classMetadataList() *metav1.PartialObjectMetadataList {
	classes := &metav1.PartialObjectMetadataList{}
	classes.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind + "List"))
	return classes
}
