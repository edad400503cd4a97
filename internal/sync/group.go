package sync

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	gosync "sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/keymutex"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// targets makes the objects through which Fleet targets Clusters: ClusterGroups, one for each ClusterClass under its
// name and one for each class of another namespace that Clusters use, and BundleNamespaceMappings. The reconciles
// of Clusters make what they need, before their Fleet Clusters; namespaceReconciler restores and removes.
type targets struct {
	client.Reader
	*kube.Applier
	// live reads past the cache: BundleDeployments, needed only while a mapping is retired, and whatever a removal must not miss.
	live     client.Reader
	rancher  *rancher.Client
	recorder events.EventRecorder
	now      func() time.Time
	// watchFilter limits which classes are reconciled; empty for all.
	watchFilter string
	// busy serializes the writers of the same group or mapping: a removal decides again when it has the lock.
	busy keymutex.KeyMutex

	mu       gosync.Mutex
	retiring map[types.NamespacedName]*retirement
}

func newTargets(c *common) *targets {
	return &targets{
		Reader: c.GetClient(), Applier: c.applier, live: c.GetAPIReader(), rancher: c.rancher, watchFilter: c.WatchFilter,
		recorder: c.GetEventRecorder("muster-syncer"), now: time.Now, busy: keymutex.NewHashed(64), retiring: map[types.NamespacedName]*retirement{},
	}
}

// lock keeps other writers of a group or mapping away until the result is called.
func (t *targets) lock(key types.NamespacedName) (unlock func()) {
	t.busy.LockKey(key.String())
	return func() { _ = t.busy.UnlockKey(key.String()) } // UnlockKey never fails.
}

// ensureGroup makes the group through which a Cluster of this class in this namespace is targeted, and
// returns its UID. If the class is in the Cluster's namespace, this is the class's group, otherwise
// the group of the use. It does not check whether other Clusters need the group.
func (t *targets) ensureGroup(ctx context.Context, in settings.Settings, namespace string, classKey types.NamespacedName) (types.UID, error) {
	if classKey.Name == "" {
		return "", nil
	}
	used := crossNamespace(namespace, classKey)
	key := cmp.Or(used.group(), classKey)
	defer t.lock(key)()
	class, err := classMetadata(ctx, t.Reader, classKey)
	switch {
	case err != nil:
		return "", err
	case !used.isZero() && in.Cluster.ApplyClassGroup:
		return t.Keep(ctx, desired.CrossNamespaceGroup(in, namespace, classKey, class), in.Cluster.PatchResource)
	case !used.isZero(), class == nil, !class.DeletionTimestamp.IsZero(), !in.Class.Enabled, !isWatched(class, t.watchFilter):
		return t.UID(ctx, key, &fleetv1.ClusterGroup{})
	case capiannotations.HasPaused(class):
		return t.ofPausedClass(ctx, in, class)
	default:
		return t.Keep(ctx, desired.ClassGroup(in, class), in.Class.PatchResource)
	}
}

// ofPausedClass makes the group of a paused class. Even if patchResource is off, the group loses its owner, which clusterctl
// move deletes. A group that an older Muster left without one stays as it is.
func (t *targets) ofPausedClass(ctx context.Context, in settings.Settings, class *desired.Class) (types.UID, error) {
	var group fleetv1.ClusterGroup
	if _, err := t.Store.Get(ctx, client.ObjectKeyFromObject(class), &group); err != nil {
		return "", err
	}
	owners := slices.DeleteFunc(slices.Clone(group.OwnerReferences), func(owner metav1.OwnerReference) bool { return owner.UID == class.UID })
	isOwned := len(owners) < len(group.OwnerReferences)
	uid, err := t.Keep(ctx, desired.ClassGroup(in, class), isOwned || in.Class.PatchResource && kube.Contains(group.Annotations, desired.Spared()))
	if isOwned && kube.IsRefused(err) { // As in release.
		_, err = t.Patch(ctx, &group, map[string]any{"metadata": map[string]any{"ownerReferences": owners}})
		return group.UID, err
	}
	return uid, err
}

// removeGroup deletes a group of ours whose class is gone, or which was made for a class of another namespace, if nothing
// needs it. With setOwnerReferences off, the group of a class stays, like the Fleet Cluster.
func (t *targets) removeGroup(ctx context.Context, in settings.Settings, key types.NamespacedName) error {
	defer t.lock(key)()
	if class, err := classMetadata(ctx, t.Reader, key); err != nil || class != nil {
		return err
	}
	var group fleetv1.ClusterGroup
	if found, err := t.Store.Get(ctx, key, &group); err != nil || !found || !group.DeletionTimestamp.IsZero() || !stamp.IsOurs(&group) ||
		!isCrossNamespaceGroup(&group) && len(group.OwnerReferences) == 0 {
		return err
	}
	if in.Cluster.ApplyClassGroup {
		if isNeeded, err := t.isNeeded(ctx, in, key.Namespace, key); err != nil || isNeeded {
			return err
		}
	}
	return t.Delete(ctx, &group)
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

// displacing returns the name of the ClusterClass, in the Clusters' namespace, whose own group has the
// name of the group that a use needs: class "std.classes" of a namespace, and class "std" of namespace
// "classes" used there. Fleet would target one through the other.
func (t *targets) displacing(ctx context.Context, in settings.Settings, used use) (string, error) {
	if used.isZero() || !in.Cluster.ApplyClassGroup {
		return "", nil
	}
	class, err := classMetadata(ctx, t.Reader, used.group())
	if err != nil || class == nil {
		return "", err
	}
	return class.Name, nil
}
