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
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

const (
	// retireInterval is the shortest time between two checks whether a mapping's deployments are gone
	// from Fleet, whatever wakes the reconciler.
	retireInterval = time.Second
	// retirePatience bounds how long a mapping waits for Fleet to drop them. Fleet reconciles every
	// Bundle when it starts, so the mapping need not wait for a Fleet that is down.
	retirePatience = time.Minute
	// listPage is how many BundleDeployments are listed at a time.
	listPage = 500
)

// retirement is the progress in retiring a mapping; of one that has begun to map, only the time.
type retirement struct {
	began, next time.Time
	attempts    int
	// refused means that at least one Bundle could not be annotated. The attempts then become rarer.
	refused bool
}

// reconcileMapping makes or restores a mapping that the administrator asks for or that a maker needs, or retires it. A
// retainer keeps an active mapping as it is; it never reactivates one. It returns when to look again.
func (t *targets) reconcileMapping(ctx context.Context, in settings.Settings, key types.NamespacedName, its *needs) (time.Duration, error) {
	defer t.lock(key)()
	if slices.Contains(in.Mappings, key) || in.Cluster.ApplyClassGroup && its.makesMapping(key.Namespace) {
		if _, err := t.write(ctx, in, key); err != nil {
			return 0, err
		}
		return t.follow(ctx, in, key)
	}
	var mapping fleetv1.BundleNamespaceMapping
	found, err := t.Store.Get(ctx, key, &mapping)
	if err != nil || !found || !mapping.DeletionTimestamp.IsZero() || !stamp.IsOurs(&mapping) {
		return 0, err
	}
	keeps := false
	if in.Cluster.ApplyClassGroup && isLive(&mapping) {
		if keeps, err = its.keepsMapping(key.Namespace); err == nil && !keeps {
			keeps, err = t.keepsMapping(ctx, in, key)
		}
	}
	if err != nil {
		return 0, err
	}
	if keeps {
		return t.follow(ctx, in, key)
	}
	return t.retire(ctx, &mapping)
}

// keepsMapping decides again whether an active mapping stays. The caller holds the lock: a Cluster may have made it meanwhile.
func (t *targets) keepsMapping(ctx context.Context, in settings.Settings, key types.NamespacedName) (bool, error) {
	its, err := t.needsOf(ctx, in, key.Name)
	if err != nil || its.makesMapping(key.Namespace) {
		return true, err
	}
	if keeps, err := its.keepsMapping(key.Namespace); err != nil || keeps {
		return keeps, err
	}
	return t.isMoved(ctx, key.Name, func(used use) bool { return used.class.Namespace == key.Namespace })
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
// is off. If the mapping begins to map by this, it says so.
func (t *targets) write(ctx context.Context, in settings.Settings, key types.NamespacedName) (types.UID, error) {
	var mapping fleetv1.BundleNamespaceMapping
	found, err := t.Store.Get(ctx, key, &mapping)
	if err != nil {
		return "", err
	}
	begun := mapping.Annotations[desired.RetargetAnnotation]
	if !found || !desired.Maps(&mapping) {
		t.forget(key)
		if begun, err = t.begins(ctx, key, mapping.Generation+1); err != nil {
			return "", err
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
	_, result, err := t.Apply(ctx, want, mapping, true)
	switch {
	case apierrors.IsConflict(err):
		return retireInterval, nil // It is gone, or a webhook of others says this of something else.
	case kube.IsAbsent(err):
		return 0, client.IgnoreNotFound(t.Delete(ctx, mapping))
	case err != nil:
		return 0, err
	case result != kube.Unchanged:
		t.forget(key) // The mapping was active until now: begin anew.
	}
	state, now := t.retirement(key), t.now()
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
		t.forget(key)
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
	after := t.attempted(key, state)
	if refused != nil {
		ctrl.LoggerFrom(ctx).Error(refused, "A Bundle may not be annotated, so the mapping stays; allow the syncer to patch Bundles, or change the Bundle", "bundle", key.String())
	}
	return after, nil
}

// deployedThrough returns the names of the Bundles in the class's namespace that Fleet deploys to
// Clusters of the other namespace.
func (t *targets) deployedThrough(ctx context.Context, key types.NamespacedName) ([]string, error) {
	var names []string
	for next := ""; ; {
		var page metav1.PartialObjectMetadataList
		page.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("BundleDeploymentList"))
		if err := t.live.List(ctx, &page, client.MatchingLabels{
			fleetv1.BundleNamespaceLabel:  key.Namespace,
			fleetv1.ClusterNamespaceLabel: key.Name,
		}, client.Limit(listPage), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("listing BundleDeployments: %w", err)
		}
		for i := range page.Items {
			deployment := &page.Items[i]
			name := deployment.Labels[fleetv1.BundleLabel]
			isFleets, err := t.isOfClusterIn(ctx, deployment.Namespace, key.Name)
			if err != nil {
				return nil, err
			}
			if deployment.DeletionTimestamp.IsZero() && name != "" && isFleets {
				names = append(names, name)
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// isOfClusterIn reports whether Fleet has made a namespace for a Fleet Cluster of another namespace. Fleet keeps BundleDeployments
// there; in other namespaces, tenants may write any. A namespace that the cache does not show counts.
func (t *targets) isOfClusterIn(ctx context.Context, namespace, clusters string) (bool, error) {
	metadata := namespaceMetadata()
	err := t.Get(ctx, client.ObjectKey{Name: namespace}, metadata, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return metadata.Annotations[fleetv1.ClusterNamespaceAnnotation] == clusters, err
}

// isRetired reports whether a mapping is as retire leaves it.
func isRetired(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping.BundleSelector == nil && mapping.NamespaceSelector == nil
}

// isLive reports whether a mapping maps any Bundle; to Fleet, a missing selector matches nothing.
func isLive(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping.BundleSelector != nil && mapping.NamespaceSelector != nil
}

// retirement returns the progress in retiring a mapping, or since when it maps, and begins either if it
// is not under way.
func (t *targets) retirement(key types.NamespacedName) retirement {
	t.mu.Lock()
	defer t.mu.Unlock()
	state, ok := t.retiring[key]
	if !ok {
		state.began = t.now()
		t.retiring[key] = state
	}
	return state
}

// attempted notes an attempt, and returns the delay until the next one.
func (t *targets) attempted(key types.NamespacedName, state retirement) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	after := retireInterval
	if state.refused {
		after = min(lastRetry, retireInterval<<min(state.attempts, 6))
	}
	state.next, state.attempts = t.now().Add(after), state.attempts+1
	t.retiring[key] = state
	return after
}

// forgetAllBut forgets the mappings to a namespace that are gone.
func (t *targets) forgetAllBut(namespace string, keys []types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.retiring, func(key types.NamespacedName, _ retirement) bool {
		return key.Name == namespace && !slices.Contains(keys, key)
	})
}

func (t *targets) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.retiring, key)
}
