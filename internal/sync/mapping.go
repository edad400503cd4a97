package sync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

const (
	// retireInterval is the shortest time between two checks whether a mapping's deployments are gone
	// from Fleet, whatever wakes the reconciler: the syncer does not watch BundleDeployments.
	retireInterval = time.Second
	// retirePatience bounds how long a mapping waits for Fleet to drop them. Fleet reconciles every
	// Bundle when it starts, so the mapping need not wait for a Fleet that is down.
	retirePatience = time.Minute
)

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

// keepMapping makes or restores a mapping that the administrator asks for or that a maker needs, and returns when to look again.
func (t *targets) keepMapping(ctx context.Context, in settings.Settings, key types.NamespacedName) (time.Duration, error) {
	defer t.lock(key)()
	if _, err := t.write(ctx, in, key); err != nil {
		return 0, err
	}
	return t.follow(ctx, in, key)
}

// removeMapping retires a mapping of ours, and returns when to look again. An active mapping that anything needs stays as it
// is; no retired one is reactivated.
func (t *targets) removeMapping(ctx context.Context, in settings.Settings, key types.NamespacedName, its *needs) (time.Duration, error) {
	defer t.lock(key)()
	var mapping fleetv1.BundleNamespaceMapping
	found, err := t.Store.Get(ctx, key, &mapping)
	if err != nil || !found || !mapping.DeletionTimestamp.IsZero() || !stamp.IsOurs(&mapping) {
		return 0, err
	}
	if in.Cluster.ApplyClassGroup && isLive(&mapping) {
		isNeeded := its.retained[key]
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
	defer t.lock(key)()
	if !in.Cluster.ApplyClassGroup {
		return t.UID(ctx, key, &fleetv1.BundleNamespaceMapping{})
	}
	return t.write(ctx, in, key)
}

// write makes a mapping, and returns its UID. A retired one is revived even if patchResource
// is off. If the mapping begins to map by this and its namespace has Fleet Clusters, it says so.
func (t *targets) write(ctx context.Context, in settings.Settings, key types.NamespacedName) (types.UID, error) {
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
	return t.Keep(ctx, desired.BegunMapping(key.Namespace, key.Name, begun), in.Cluster.PatchResource || found && isRetired(&mapping))
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
		return retireInterval, nil // It is gone, or a webhook of others says this of something else.
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
	// While a Bundle cannot be annotated, waiting proves nothing.
	if len(bundles) == 0 || now.Sub(state.began) >= retirePatience && !state.refused {
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
	after := retireInterval
	if state.refused {
		after = min(lastRetry, retireInterval<<min(state.attempts, 6))
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
			deployment, home := &page.Items[i], namespaceMetadata()
			err := t.Get(ctx, client.ObjectKey{Name: deployment.Namespace}, home, client.UnsafeDisableDeepCopy)
			isFleets := err != nil || home.Annotations[fleetv1.ClusterNamespaceAnnotation] == key.Name
			if name := deployment.Labels[fleetv1.BundleLabel]; deployment.DeletionTimestamp.IsZero() && name != "" && isFleets {
				names = append(names, name)
			}
		}
	}, client.MatchingLabels{fleetv1.BundleNamespaceLabel: key.Namespace, fleetv1.ClusterNamespaceLabel: key.Name}); err != nil {
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
