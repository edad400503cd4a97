package sync

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// groupReconciler keeps ClusterGroups: one for each ClusterClass, under its name,
// and one for each class of another namespace that Clusters use.
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

// Reconcile puts one ClusterGroup back as it should be, or deletes it. What Clusters
// need is made before their Fleet Clusters, by ensure.
func (r *groupReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.busy.LockKey(req.String())
	defer func() { _ = r.busy.UnlockKey(req.String()) }() // UnlockKey never fails.
	current, usable, err := r.settings.current(ctx)
	if err != nil || !usable {
		return ctrl.Result{}, err
	}
	class, err := classMetadata(ctx, r.Reader, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if class != nil {
		_, err := r.ofClass(ctx, current, class)
		return ctrl.Result{}, err
	}
	if !current.Cluster.Enabled {
		return ctrl.Result{}, nil // Turned off: what is there stays as it is.
	}
	if current.Cluster.ApplyClassGroup {
		filter := client.MatchingFields{byGroup: req.Name}
		used, err := r.users.maker(ctx, current, req.Namespace, filter)
		if err != nil {
			return ctrl.Result{}, err
		}
		if !used.isZero() {
			_, err := r.ofUse(ctx, current, used)
			return ctrl.Result{}, err
		}
		if keeps, err := r.users.keeper(ctx, current, req.Namespace, filter); err != nil || keeps {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, r.remove(ctx, req.NamespacedName)
}

// ensure makes the group that a Cluster of this class in this namespace is targeted
// through, and returns its UID: that of the class if it is beside the Cluster, that of
// the use if it is elsewhere. It asks nobody who else needs it.
func (r *groupReconciler) ensure(ctx context.Context, in settings.Settings, namespace string, classKey types.NamespacedName) (types.UID, error) {
	if classKey.Name == "" {
		return "", nil
	}
	if used := crossNamespace(namespace, classKey); !used.isZero() {
		key := used.group().String()
		r.busy.LockKey(key)
		defer func() { _ = r.busy.UnlockKey(key) }()
		if !in.Cluster.ApplyClassGroup {
			return r.uid(ctx, used.group())
		}
		return r.ofUse(ctx, in, used)
	}
	r.busy.LockKey(classKey.String())
	defer func() { _ = r.busy.UnlockKey(classKey.String()) }()
	class, err := classMetadata(ctx, r.Reader, classKey)
	if err != nil {
		return "", err
	}
	if class == nil {
		return r.uid(ctx, classKey)
	}
	return r.ofClass(ctx, in, class)
}

// ofClass makes the group of a class that exists, and returns its UID.
func (r *groupReconciler) ofClass(ctx context.Context, in settings.Settings, class *desired.Class) (types.UID, error) {
	if !class.DeletionTimestamp.IsZero() || !in.Class.Enabled || !isWatched(class, r.watchFilter) {
		return r.uid(ctx, client.ObjectKeyFromObject(class))
	}
	return r.write(ctx, desired.ClassGroup(in, class), in.Class.PatchResource)
}

// ofUse makes the group of a use, and returns its UID.
func (r *groupReconciler) ofUse(ctx context.Context, in settings.Settings, used use) (types.UID, error) {
	class, err := classMetadata(ctx, r.Reader, used.class)
	if err != nil {
		return "", err
	}
	return r.write(ctx, desired.CrossNamespaceGroup(used.namespace, used.class, class), in.Cluster.PatchResource)
}

func (r *groupReconciler) write(ctx context.Context, want *fleetv1.ClusterGroup, patch bool) (types.UID, error) {
	var group fleetv1.ClusterGroup
	found, err := r.Store.Get(ctx, client.ObjectKeyFromObject(want), &group)
	if err != nil {
		return "", err
	}
	var live client.Object
	if found {
		live = &group
		switch {
		case !group.DeletionTimestamp.IsZero():
			return group.UID, nil // Its deletion brings us back.
		case !stamp.IsOurs(&group):
			ctrl.LoggerFrom(ctx).Info("Left alone a ClusterGroup that somebody else made; rename it, or hand it over with the annotation "+stamp.AdoptAnnotation+"=true",
				"object", client.ObjectKeyFromObject(&group).String())
			return group.UID, nil
		}
	}
	written, _, err := r.Apply(ctx, want, live, patch)
	if apply.IsAbsent(err) {
		return "", nil // The namespace is going, and the group with it.
	}
	if err != nil {
		return "", err
	}
	return written.GetUID(), nil
}

func (r *groupReconciler) uid(ctx context.Context, key types.NamespacedName) (types.UID, error) {
	var group fleetv1.ClusterGroup
	_, err := r.Store.Get(ctx, key, &group)
	return group.UID, err
}

// remove deletes a group that is not used. A class's group goes with its class, through
// the owner reference or here; one with setOwnerReferences off stays like the Fleet Cluster.
func (r *groupReconciler) remove(ctx context.Context, key types.NamespacedName) error {
	var group fleetv1.ClusterGroup
	found, err := r.Store.Get(ctx, key, &group)
	if err != nil || !found || !group.DeletionTimestamp.IsZero() || !stamp.IsOurs(&group) {
		return err
	}
	if isCrossNamespaceGroup(&group) || len(group.OwnerReferences) > 0 {
		return r.Delete(ctx, &group)
	}
	return nil
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
