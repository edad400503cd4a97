package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	gosync "sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
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
	// groupLocks and mappingLocks serialize the writers of the same object: a removal decides again when it has the lock.
	groupLocks, mappingLocks kube.Locks

	mu       gosync.Mutex
	retiring map[types.NamespacedName]*retirement
}

func newTargets(c *common) *targets {
	return &targets{
		Reader: c.GetClient(), Applier: c.applier, live: c.GetAPIReader(), rancher: c.rancher, watchFilter: c.WatchFilter,
		recorder: c.GetEventRecorder("muster-syncer"), now: time.Now, retiring: map[types.NamespacedName]*retirement{},
	}
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
	defer t.groupLocks.Lock(key.String())()
	class, err := classMetadata(ctx, t.Reader, classKey)
	switch {
	case err != nil:
		return "", err
	case !used.isZero() && in.Cluster.ApplyClassGroup:
		return t.Ensure(ctx, desired.CrossNamespaceGroup(in, namespace, classKey, class), in.Cluster.PatchResource)
	case !used.isZero(), class == nil, !class.DeletionTimestamp.IsZero(), !in.Class.Enabled, !isWatched(class, t.watchFilter):
		return t.UID(ctx, key, &fleetv1.ClusterGroup{})
	case capiannotations.HasPaused(class):
		return t.ofPausedClass(ctx, in, class)
	default:
		return t.Ensure(ctx, desired.ClassGroup(in, class), in.Class.PatchResource)
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
	uid, err := t.Ensure(ctx, desired.ClassGroup(in, class), isOwned || in.Class.PatchResource && kube.Contains(group.Annotations, desired.Spared()))
	if isOwned && kube.IsRefused(err) { // As in release.
		_, err = t.Patch(ctx, &group, map[string]any{"metadata": map[string]any{"ownerReferences": owners}})
		return group.UID, err
	}
	return uid, err
}

// removeGroup deletes a group of ours whose class is gone, or which was made for a class of another namespace, if nothing
// needs it. With setOwnerReferences off, the group of a class stays, like the Fleet Cluster.
func (t *targets) removeGroup(ctx context.Context, in settings.Settings, key types.NamespacedName) error {
	defer t.groupLocks.Lock(key.String())()
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

// groupOwner returns the name of the ClusterClass, in the Clusters' namespace, whose own group has the
// name of the group that a use needs: class "std.classes" of a namespace, and class "std" of namespace
// "classes" used there. Fleet would target one through the other.
func (t *targets) groupOwner(ctx context.Context, in settings.Settings, used use) (string, error) {
	if used.isZero() || !in.Cluster.ApplyClassGroup {
		return "", nil
	}
	class, err := classMetadata(ctx, t.Reader, used.group())
	if err != nil || class == nil {
		return "", err
	}
	return class.Name, nil
}

// bundlesInterval is the shortest time between two lists of a mapping's BundleDeployments or Bundles, whatever wakes the
// reconciler: the syncer does not watch them.
const bundlesInterval = time.Second

// retirement is the progress in retiring a mapping; of one that has begun to map, only the time.
type retirement struct {
	// uid and generation are those of the mapping that began to be retired, or to map.
	uid         types.UID
	generation  int64
	began, next time.Time
	attempts    int
	// refused means that at least one Bundle could not be annotated. The attempts then become rarer.
	refused bool
}

// restoreMapping makes or restores a mapping that the administrator asks for or that a maker needs, and returns when to look again.
func (t *targets) restoreMapping(ctx context.Context, in settings.Settings, key types.NamespacedName) (time.Duration, error) {
	defer t.mappingLocks.Lock(key.String())()
	if _, err := t.applyMapping(ctx, in, key); err != nil {
		return 0, err
	}
	return t.follow(ctx, in, key)
}

// removeMapping retires a mapping of ours, and returns when to look again. An active mapping that anything needs stays as it
// is; no retired one is reactivated.
func (t *targets) removeMapping(ctx context.Context, in settings.Settings, key types.NamespacedName, its *needs) (time.Duration, error) {
	defer t.mappingLocks.Lock(key.String())()
	var mapping fleetv1.BundleNamespaceMapping
	found, err := t.Store.Get(ctx, key, &mapping)
	if err != nil || !found || !mapping.DeletionTimestamp.IsZero() || !stamp.IsOurs(&mapping) {
		return 0, err
	}
	if in.Cluster.ApplyClassGroup && isLive(&mapping) {
		isNeeded := its.inUse[key]
		if !isNeeded {
			isNeeded, err = t.isNeeded(ctx, in, key.Name, key)
		}
		if err != nil {
			return 0, err
		}
		if isNeeded {
			return t.follow(ctx, in, key)
		}
	}
	return t.retire(ctx, &mapping)
}

// ensureMapping makes the mapping that a use needs, and returns its UID. It does not check whether other
// Clusters need it.
func (t *targets) ensureMapping(ctx context.Context, in settings.Settings, used use) (types.UID, error) {
	if used.isZero() {
		return "", nil
	}
	key := used.mapping()
	defer t.mappingLocks.Lock(key.String())()
	if !in.Cluster.ApplyClassGroup {
		return t.UID(ctx, key, &fleetv1.BundleNamespaceMapping{})
	}
	return t.applyMapping(ctx, in, key)
}

// applyMapping makes a mapping, and returns its UID. A retired one is revived even if patchResource
// is off. If the mapping begins to map by this and its namespace has Fleet Clusters, it says so.
func (t *targets) applyMapping(ctx context.Context, in settings.Settings, key types.NamespacedName) (types.UID, error) {
	var mapping fleetv1.BundleNamespaceMapping
	found, err := t.Store.Get(ctx, key, &mapping)
	if err != nil {
		return "", err
	}
	begun := mapping.Annotations[desired.RetargetAnnotation]
	if !found || !desired.Maps(&mapping) { // It begins to map. Fleet looks at each new Fleet Cluster anyway.
		var list fleetv1.ClusterList
		if err := t.List(ctx, &list, client.InNamespace(key.Name), client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing Fleet Clusters: %w", err)
		}
		begun = ""
		if slices.ContainsFunc(list.Items, func(cluster fleetv1.Cluster) bool { return stamp.IsOurs(&cluster) || rancher.IsFleetCluster(&cluster) }) {
			begun = strconv.FormatInt(mapping.Generation+1, 10)
		}
	}
	return t.Ensure(ctx, desired.BegunMapping(key.Namespace, key.Name, begun), in.Cluster.PatchResource || found && isRetired(&mapping))
}

// retire removes a mapping for good. First the mapping is emptied, so that it maps nothing. Then Fleet
// must compute the targets again of each Bundle that was deployed through it. When none of these
// deployments is left, the mapping is deleted. The work can be interrupted anywhere: the mapping
// records that work is left.
func (t *targets) retire(ctx context.Context, mapping *fleetv1.BundleNamespaceMapping) (time.Duration, error) {
	key := client.ObjectKeyFromObject(mapping)
	want := desired.RetiredMapping(key.Namespace, key.Name)
	want.UID = mapping.UID // Without it, an apply would make a mapping that somebody has just deleted again.
	written, _, err := t.Apply(ctx, want, mapping, true)
	switch {
	case apierrors.IsConflict(err):
		return bundlesInterval, nil // It is gone, or a webhook of others says this of something else.
	case kube.IsAbsent(err):
		return 0, client.IgnoreNotFound(t.Delete(ctx, mapping))
	case err != nil:
		return 0, err
	}
	state, now := t.progress(written), t.now()
	if wait := state.next.Sub(now); wait > 0 {
		return wait, nil
	}

	bundles, err := t.deployedThrough(ctx, key)
	if err != nil {
		return 0, err
	}
	// Fleet reconciles every Bundle when it starts, so the mapping need not wait for a Fleet that is down. While a Bundle cannot
	// be annotated, waiting proves nothing.
	if len(bundles) == 0 || now.Sub(state.began) >= patience && !state.refused {
		if len(bundles) > 0 {
			ctrl.LoggerFrom(ctx).Info("Fleet still deploys bundles of the class namespace; is another BundleNamespaceMapping in force?",
				"bundleNamespaceMapping", key.String(), "bundles", bundles)
		}
		return 0, t.Delete(ctx, mapping)
	}
	// Fleet's view of the mapping may lag behind the Bundle's change. So try again with another value,
	// at growing intervals, until Fleet has acted. A Bundle that cannot be changed does not hold up
	// the others.
	var refused error
	if state.refused || state.attempts&(state.attempts-1) == 0 {
		for _, bundle := range bundles {
			refused = errors.Join(refused, t.retarget(ctx, types.NamespacedName{Namespace: key.Namespace, Name: bundle},
				mapping.ResourceVersion+"-"+strconv.Itoa(state.attempts)))
		}
		if refused != nil && !state.refused {
			t.recorder.Eventf(mapping, nil, corev1.EventTypeWarning, "RetargetRefused", "Retire", "%s", message.Short(fmt.Sprintf(
				"Fleet still deploys these Bundles to namespace %q, and so that it looks at them again the syncer must be allowed to annotate them (or you change them in any way); it is tried again every minute: %v",
				key.Name, refused), message.Note))
		}
		state.refused = refused != nil
	}
	after := bundlesInterval
	if state.refused {
		after = min(longestWait, bundlesInterval<<min(state.attempts, 6))
	}
	state.next, state.attempts = t.now().Add(after), state.attempts+1
	if refused != nil {
		ctrl.LoggerFrom(ctx).Error(refused, "A Bundle may not be annotated, so the mapping stays; allow the syncer to patch Bundles, or change the Bundle", "bundle", key.String())
	}
	return after, nil
}

// deployedThrough returns the names of the Bundles in the class's namespace that Fleet deploys to
// Clusters of the other namespace. Fleet keeps BundleDeployments in the namespaces that it has made for Fleet Clusters; in
// others, tenants may write any. A namespace that the cache does not show counts.
func (t *targets) deployedThrough(ctx context.Context, key types.NamespacedName) (names []string, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("BundleDeploymentList"))
	if _, err := pager.Each(ctx, t.live, list, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			deployment, namespace := &page.Items[i], namespaceMetadata()
			err := t.Get(ctx, client.ObjectKey{Name: deployment.Namespace}, namespace, client.UnsafeDisableDeepCopy)
			isFleets := err != nil || namespace.Annotations[fleetv1.ClusterNamespaceAnnotation] == key.Name
			if name := deployment.Labels[fleetv1.BundleLabel]; deployment.DeletionTimestamp.IsZero() && name != "" && isFleets {
				names = append(names, name)
			}
		}
	}, client.MatchingLabels{fleetv1.BundleNamespaceLabel: key.Namespace, fleetv1.ClusterNamespaceLabel: key.Name}, pager.Small); err != nil {
		return nil, fmt.Errorf("listing BundleDeployments: %w", err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// isRetired reports whether a mapping is as retire leaves it.
func isRetired(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping.BundleSelector == nil && mapping.NamespaceSelector == nil
}

// isLive reports whether a mapping maps any Bundle; to Fleet, a missing selector matches nothing.
func isLive(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping.BundleSelector != nil && mapping.NamespaceSelector != nil
}

// progress returns the progress in retiring a mapping, or since when it maps, and begins either if it
// is not under way. The caller holds the mapping's lock.
func (t *targets) progress(mapping client.Object) *retirement {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := client.ObjectKeyFromObject(mapping)
	state := t.retiring[key]
	if state == nil || state.uid != mapping.GetUID() || state.generation != mapping.GetGeneration() {
		state = &retirement{uid: mapping.GetUID(), generation: mapping.GetGeneration(), began: t.now()}
		t.retiring[key] = state
	}
	return state
}

// forgetAllBut forgets the mappings to a namespace that are gone.
func (t *targets) forgetAllBut(namespace string, keys map[types.NamespacedName]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.retiring, func(key types.NamespacedName, _ *retirement) bool { return key.Name == namespace && !keys[key] })
}

// bundlesAtOnce is how many Bundles are annotated in each bundlesInterval: Fleet works out the targets of each.
const bundlesAtOnce = 10

// follow makes Fleet look twice at the Bundles of a mapping that has begun to map, because Fleet watches
// no mappings. The mapping's annotation records the progress, and the reconciles of Clusters copy it to
// their Fleet Clusters. In a workspace, where the Fleet Clusters are Rancher's, follow annotates the
// Bundles instead.
func (t *targets) follow(ctx context.Context, in settings.Settings, key types.NamespacedName) (time.Duration, error) {
	var mapping fleetv1.BundleNamespaceMapping
	found, err := t.Store.Get(ctx, key, &mapping)
	note, isAsked := mapping.Annotations[desired.RetargetAnnotation], slices.Contains(in.Mappings, key)
	isSecond := strings.HasSuffix(note, desired.RetargetAgain)
	if err != nil || !found || note == "" || !desired.Maps(&mapping) || isSecond && !isAsked {
		return 0, err
	}
	if isAsked {
		if isLeft, err := t.retargetBundles(ctx, &mapping); err != nil || isLeft {
			return bundlesInterval, err
		}
	}
	var next any   // Nothing is left to do.
	if !isSecond { // Fleet's own view of the mapping may have lagged behind the first time.
		if wait := t.progress(&mapping).began.Add(hold.Settle).Sub(t.now()); wait > 0 {
			return wait, nil
		}
		next = note + desired.RetargetAgain
	}
	_, err = t.Patch(ctx, &mapping, retargeting(next))
	return 0, err
}

// retargetBundles annotates some of a mapping's Bundles, and reports whether any is left.
func (t *targets) retargetBundles(ctx context.Context, mapping *fleetv1.BundleNamespaceMapping) (isLeft bool, err error) {
	selector, err := metav1.LabelSelectorAsSelector(desired.Mapping(mapping.Namespace, mapping.Name).BundleSelector)
	if err != nil {
		return false, err
	}
	begun, bundles := desired.Begun(mapping), &metav1.PartialObjectMetadataList{}
	bundles.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("BundleList"))
	var names []string
	if _, err := pager.Each(ctx, t.live, bundles, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			bundle := &page.Items[i]
			if bundle.DeletionTimestamp.IsZero() && bundle.Annotations[desired.RetargetAnnotation] != begun {
				names = append(names, bundle.Name)
			}
		}
	}, client.InNamespace(mapping.Namespace), client.MatchingLabelsSelector{Selector: selector}, pager.Small); err != nil {
		return false, fmt.Errorf("listing Bundles: %w", err)
	}
	// In another order each time: otherwise, ten that are always refused would keep the others waiting.
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:min(bundlesAtOnce, len(names))]
	var refused []error
	for _, name := range names {
		if err := t.retarget(ctx, types.NamespacedName{Namespace: mapping.Namespace, Name: name}, begun); err != nil {
			refused = append(refused, err)
		}
	}
	if len(refused) < len(names) {
		return true, nil // The next round tries the refused ones again, and brings others.
	}
	return false, errors.Join(refused...)
}

// retarget makes Fleet work out the targets of a Bundle again.
func (t *targets) retarget(ctx context.Context, key types.NamespacedName, value string) error {
	bundle := &metav1.PartialObjectMetadata{}
	bundle.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Bundle"))
	bundle.Namespace, bundle.Name = key.Namespace, key.Name
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, desired.RetargetAnnotation, value)
	err := t.Client.Patch(ctx, bundle, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(stamp.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("making Fleet look again at Bundle %s: %w", key, err)
	}
	ctrl.LoggerFrom(ctx).Info("Made Fleet work out a bundle's targets again", "bundle", key.String())
	return nil
}

// retarget notes on a Fleet Cluster which mappings have begun to map, so that Fleet looks at its Bundles
// again. It changes nothing else: the Cluster is deselected, or patchResource is off.
func (r *clusterReconciler) retarget(ctx context.Context, s scope) (fleetState, error) {
	begun, err := begunFor(ctx, r.Client, r.applier.Store, s.cluster.Namespace, use{})
	have := s.fleet.Annotations[desired.RetargetAnnotation]
	noted := desired.Retargeted(have, begun)
	if err != nil || noted == have {
		return s.fleetState, err
	}
	return r.patchFleetCluster(ctx, s, retargeting(noted))
}

// retargeting returns a change of the RetargetAnnotation; nil removes it.
func retargeting(value any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{desired.RetargetAnnotation: value}}}
}

// begunFor returns the mappings to a namespace that began to map when it had Fleet Clusters already. The cache may not
// show the one that was just made for a use, and of an unread namespace it shows none.
func begunFor(ctx context.Context, reader client.Reader, store *kube.Store, namespace string, made use) ([]string, error) {
	var list fleetv1.BundleNamespaceMappingList
	into := client.MatchingFields{byMapped: namespace}
	if err := reader.List(ctx, &list, into, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing BundleNamespaceMappings: %w", err)
	}
	var keys []types.NamespacedName
	if !made.isZero() {
		keys = append(keys, made.mapping())
	}
	for i := range list.Items {
		keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
	}
	var begun []string
	for _, key := range keys {
		var mapping fleetv1.BundleNamespaceMapping
		if found, err := store.Get(ctx, key, &mapping); err != nil {
			return nil, err
		} else if found && stamp.IsOurs(&mapping) {
			begun = append(begun, desired.Begun(&mapping))
		}
	}
	slices.Sort(begun)
	return slices.DeleteFunc(slices.Compact(begun), func(noted string) bool { return noted == "" }), nil
}

// mappedBy indexes mappings by the namespace of the Clusters that they are for.
func mappedBy(mapping client.Object) []string { return []string{mapping.GetName()} }
