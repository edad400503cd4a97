package sync

import (
	"context"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// groupReconciler keeps ClusterGroups: one for each ClusterClass, under its name,
// and one for each class of another namespace that Clusters use.
type groupReconciler struct {
	client.Reader
	*kube.Applier
	users    *users
	settings *settings.Reader
	// watchFilter limits which classes are reconciled; empty for all.
	watchFilter string
	// busy serializes reconciles of the same group, whether its own events or Clusters that need it
	// cause them. The second reconcile finds in the store the group that the first has written.
	busy keymutex.KeyMutex
}

func newGroupReconciler(c *common) *groupReconciler {
	return &groupReconciler{
		Reader: c.GetClient(), Applier: c.applier, users: c.users, settings: c.settings,
		watchFilter: c.WatchFilter, busy: keymutex.NewHashed(64),
	}
}

// setUp registers the events that wake the reconciler. At startup, only groups and classes wake it;
// the reconciles of Clusters make the groups that they need.
func (r *groupReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("clustergroup").
		WithOptions(controllerOptions(c.ClassConcurrency)).
		For(&fleetv1.ClusterGroup{}, builder.WithPredicates(kube.News)).
		WatchesMetadata(newClass(), enqueue(c.events.groupsOfClass), builder.WithPredicates(watched(c.WatchFilter), kube.News)).
		Watches(&clusterv1.Cluster{}, enqueue(c.events.ofCluster(use.group)), builder.WithPredicates(afterStart, specOrLabels)).
		Watches(&fleetv1.Cluster{}, enqueue(c.events.ofFleetCluster(use.group)), builder.WithPredicates(afterStart, useNews)).
		Watches(&fleetv1.Cluster{}, enqueue(workspaceGroups), builder.WithPredicates(afterStart, labelsOrExistence)).
		Watches(&addonsv1.FleetAddonConfig{}, behind(c.events.allGroups), builder.WithPredicates(afterStart, settingsNews)).
		WatchesMetadata(namespaceMetadata(), behind(c.events.inNamespace(use.group)), builder.WithPredicates(afterStart, predicate.LabelChangedPredicate{})).
		Complete(kube.Consistent(patient{r}))
}

// Reconcile restores one ClusterGroup, or deletes it. The groups that Clusters need are made by
// ensure, before their Fleet Clusters.
func (r *groupReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.busy.LockKey(req.String())
	defer func() { _ = r.busy.UnlockKey(req.String()) }() // UnlockKey never fails.
	current, err := r.settings.Current(ctx)
	if err != nil || current.Invalid != nil {
		return ctrl.Result{}, err
	}
	if kept, err := r.ofWorkspace(ctx, current.Settings, req.NamespacedName); err != nil || kept {
		return ctrl.Result{}, kube.IgnoreForeign(err)
	}
	class, err := classMetadata(ctx, r.Reader, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if class != nil {
		_, err := r.ofClass(ctx, current.Settings, class)
		return ctrl.Result{}, kube.IgnoreForeign(err) // The conditions of the Clusters report it.
	}
	if !current.Cluster.Enabled {
		return ctrl.Result{}, nil // The import is turned off: existing groups stay as they are.
	}
	about := ofGroup(req.Name)
	if current.Cluster.ApplyClassGroup {
		used, err := r.users.maker(ctx, current.Settings, req.Namespace, about)
		if err != nil {
			return ctrl.Result{}, err
		}
		if !used.isZero() {
			_, err := r.ofUse(ctx, current.Settings, used)
			return ctrl.Result{}, kube.IgnoreForeign(err)
		}
	}
	var group fleetv1.ClusterGroup
	if found, err := r.Store.Get(ctx, req.NamespacedName, &group); err != nil || !found || !isRemovable(&group) {
		return ctrl.Result{}, err
	}
	if current.Cluster.ApplyClassGroup {
		if keeps, err := r.users.retainerOrMoved(ctx, current.Settings, req.Namespace, about); err != nil || keeps {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, r.Delete(ctx, &group)
}

// ensure makes the group through which a Cluster of this class in this namespace is targeted, and
// returns its UID. If the class is in the Cluster's namespace, this is the class's group, otherwise
// the group of the use. It does not check whether other Clusters need the group.
func (r *groupReconciler) ensure(ctx context.Context, in settings.Settings, namespace string, classKey types.NamespacedName) (types.UID, error) {
	if classKey.Name == "" {
		return "", nil
	}
	if used := crossNamespace(namespace, classKey); !used.isZero() {
		key := used.group().String()
		r.busy.LockKey(key)
		defer func() { _ = r.busy.UnlockKey(key) }()
		if !in.Cluster.ApplyClassGroup {
			return r.UID(ctx, used.group(), &fleetv1.ClusterGroup{})
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
		return r.UID(ctx, classKey, &fleetv1.ClusterGroup{})
	}
	return r.ofClass(ctx, in, class)
}

// ofClass makes the group of a class that exists, and returns its UID.
func (r *groupReconciler) ofClass(ctx context.Context, in settings.Settings, class *desired.Class) (types.UID, error) {
	if !class.DeletionTimestamp.IsZero() || !in.Class.Enabled || !isWatched(class, r.watchFilter) {
		return r.UID(ctx, client.ObjectKeyFromObject(class), &fleetv1.ClusterGroup{})
	}
	if capiannotations.HasPaused(class) {
		return r.ofPausedClass(ctx, in, class)
	}
	return r.Keep(ctx, desired.ClassGroup(in, class), in.Class.PatchResource)
}

// ofPausedClass is ofClass for a paused class. Even if patchResource is off, the group loses its owner, which clusterctl move
// deletes. A group that an older Muster left without one stays as it is.
func (r *groupReconciler) ofPausedClass(ctx context.Context, in settings.Settings, class *desired.Class) (types.UID, error) {
	var group fleetv1.ClusterGroup
	if _, err := r.Store.Get(ctx, client.ObjectKeyFromObject(class), &group); err != nil {
		return "", err
	}
	owners := slices.DeleteFunc(slices.Clone(group.OwnerReferences), func(owner metav1.OwnerReference) bool { return owner.UID == class.UID })
	isOwned := len(owners) < len(group.OwnerReferences)
	uid, err := r.Keep(ctx, desired.ClassGroup(in, class), isOwned || in.Class.PatchResource && kube.Contains(group.Annotations, desired.Spared()))
	if isOwned && kube.IsRefused(err) { // As in release.
		_, err = r.Patch(ctx, &group, map[string]any{"metadata": map[string]any{"ownerReferences": owners}})
		return group.UID, err
	}
	return uid, err
}

// ofUse makes the group of a use, and returns its UID.
func (r *groupReconciler) ofUse(ctx context.Context, in settings.Settings, used use) (types.UID, error) {
	class, err := classMetadata(ctx, r.Reader, used.class)
	if err != nil {
		return "", err
	}
	return r.Keep(ctx, desired.CrossNamespaceGroup(in, used.namespace, used.class, class), in.Cluster.PatchResource)
}

// isRemovable reports whether Muster deletes a group when it is unused. A class's group goes with its
// class, through the owner reference or here; with setOwnerReferences off it stays, like the Fleet
// Cluster.
func isRemovable(group *fleetv1.ClusterGroup) bool {
	return group.DeletionTimestamp.IsZero() && stamp.IsOurs(group) &&
		(isCrossNamespaceGroup(group) || len(group.OwnerReferences) > 0)
}

// isCrossNamespaceGroup reports whether a group of ours selects Clusters of its namespace that use a
// class of another namespace.
func isCrossNamespaceGroup(group *fleetv1.ClusterGroup) bool {
	namespace := group.Labels[stamp.ClassNamespaceLabel]
	return namespace != "" && namespace != group.Namespace
}

// newClass returns an empty ClusterClass, for reading and caching only its metadata.
func newClass() *desired.Class {
	class := &desired.Class{}
	class.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind))
	return class
}

// classMetadata returns the metadata of a ClusterClass, read-only, or nil if there is none.
func classMetadata(ctx context.Context, reader client.Reader, key client.ObjectKey) (*desired.Class, error) {
	if key.Name == "" {
		return nil, nil
	}
	class := newClass()
	switch err := reader.Get(ctx, key, class, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading ClusterClass %s: %w", key, err)
	default:
		return class, nil
	}
}

func classMetadataList() *metav1.PartialObjectMetadataList {
	classes := &metav1.PartialObjectMetadataList{}
	classes.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind + "List"))
	return classes
}
