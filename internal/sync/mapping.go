package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	gosync "sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/keymutex"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
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

// mappingReconciler keeps BundleNamespaceMappings: one for each pair of a class namespace and a
// namespace whose Clusters use its classes. Its key is the mapping's own: the namespace is the class
// namespace, the name is the namespace of the Clusters.
type mappingReconciler struct {
	client.Reader
	*kube.Applier
	// live reads BundleDeployments past the cache: they are needed only while a mapping is
	// retired.
	live     client.Reader
	users    *users
	settings *settings.Reader
	recorder events.EventRecorder
	now      func() time.Time
	// busy serializes reconciles of the same mapping, as groupReconciler's does.
	busy keymutex.KeyMutex

	mu       gosync.Mutex
	retiring map[types.NamespacedName]retirement
}

// retirement is the progress in retiring a mapping; of one that has begun to map, only the time.
type retirement struct {
	began, next time.Time
	attempts    int
	// refused means that at least one Bundle could not be annotated. The attempts then become rarer.
	refused bool
}

func newMappingReconciler(c *common) *mappingReconciler {
	return &mappingReconciler{
		Reader: c.GetClient(), Applier: c.applier, live: c.GetAPIReader(), users: c.users, settings: c.settings,
		recorder: c.GetEventRecorder("muster-syncer"), now: time.Now, busy: keymutex.NewHashed(64), retiring: map[types.NamespacedName]retirement{},
	}
}

// setUp registers the events that wake the reconciler. At startup, only mappings wake it; the
// reconciles of Clusters make the mappings that they need.
func (r *mappingReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("bundlenamespacemapping").
		WithOptions(controllerOptions(c.ClassConcurrency)).
		For(&fleetv1.BundleNamespaceMapping{}, builder.WithPredicates(kube.News)).
		Watches(&clusterv1.Cluster{}, enqueue(c.events.ofCluster(use.mapping)), builder.WithPredicates(afterStart, specOrLabels)).
		Watches(&fleetv1.Cluster{}, enqueue(c.events.ofFleetCluster(use.mapping)), builder.WithPredicates(afterStart, useNews)).
		Watches(&addonsv1.FleetAddonConfig{}, behind(c.events.allMappings), builder.WithPredicates(afterStart, settingsNews)).
		Watches(&addonsv1.FleetAddonConfig{}, enqueue(askedMappings(c.Options.Cache.DefaultNamespaces)), builder.WithPredicates(settingsNews)).
		WatchesMetadata(namespaceMetadata(), behind(c.events.inNamespace(use.mapping)), builder.WithPredicates(afterStart, predicate.LabelChangedPredicate{})).
		Complete(kube.Consistent(patient{r}))
}

// askedMappings returns the mappings into workspaces of Rancher that a FleetAddonConfig asks for. No
// Cluster asks for them, so they are enqueued at startup, too. It leaves out those that cannot be read.
func askedMappings(namespaces map[string]cache.Config) handler.MapFunc {
	return func(_ context.Context, config client.Object) []reconcile.Request {
		return requests(slices.DeleteFunc(settings.MappingsOf(config.(*addonsv1.FleetAddonConfig)), func(key types.NamespacedName) bool {
			return !isRead(namespaces, key.Namespace)
		})...)
	}
}

// Reconcile restores one mapping, or retires and then deletes it. The mappings that Clusters need are
// made by ensure, before their Fleet Clusters.
func (r *mappingReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.busy.LockKey(req.String())
	defer func() { _ = r.busy.UnlockKey(req.String()) }() // UnlockKey never fails.
	current, err := r.settings.Current(ctx)
	if err != nil || !current.Cluster.Enabled {
		return ctrl.Result{}, err
	}
	var mapping fleetv1.BundleNamespaceMapping
	found, err := r.Store.Get(ctx, req.NamespacedName, &mapping)
	if err != nil || found && (!mapping.DeletionTimestamp.IsZero() || !stamp.IsOurs(&mapping)) {
		return ctrl.Result{}, err
	}
	if !found {
		r.forget(req.NamespacedName)
	}
	switch kept, err := r.keep(ctx, current.Settings, req.NamespacedName, found && isLive(&mapping)); {
	case err != nil:
		return ctrl.Result{}, kube.IgnoreForeign(err) // The conditions of the Clusters report it.
	case kept:
		return r.follow(ctx, current.Settings, req.NamespacedName)
	case !found:
		return ctrl.Result{}, nil
	default:
		return r.retire(ctx, &mapping)
	}
}

// keep makes or restores a mapping that the administrator asks for or that a maker needs. It reports
// whether the mapping stays. A retainer keeps an active mapping as it is; it never reactivates one.
func (r *mappingReconciler) keep(ctx context.Context, in settings.Settings, key types.NamespacedName, isActive bool) (bool, error) {
	if slices.Contains(in.Mappings, key) {
		_, err := r.write(ctx, in, key)
		return true, err
	}
	if !in.Cluster.ApplyClassGroup {
		return false, nil
	}
	about := ofClassesIn(key.Namespace)
	used, err := r.users.maker(ctx, in, key.Name, about)
	switch {
	case err != nil:
		return false, err
	case !used.isZero():
		_, err := r.write(ctx, in, used.mapping())
		return true, err
	case isActive:
		return r.users.retainerOrMoved(ctx, in, key.Name, about)
	default:
		return false, nil
	}
}

// ensure makes the mapping that a use needs, and returns its UID. It does not check whether other
// Clusters need it.
func (r *mappingReconciler) ensure(ctx context.Context, in settings.Settings, used use) (types.UID, error) {
	if used.isZero() {
		return "", nil
	}
	key := used.mapping()
	r.busy.LockKey(key.String())
	defer func() { _ = r.busy.UnlockKey(key.String()) }()
	if !in.Cluster.ApplyClassGroup {
		return r.UID(ctx, key, &fleetv1.BundleNamespaceMapping{})
	}
	return r.write(ctx, in, key)
}

// write makes a mapping, and returns its UID. A retired one is revived even if patchResource
// is off. If the mapping begins to map by this, it says so.
func (r *mappingReconciler) write(ctx context.Context, in settings.Settings, key types.NamespacedName) (types.UID, error) {
	var mapping fleetv1.BundleNamespaceMapping
	found, err := r.Store.Get(ctx, key, &mapping)
	if err != nil {
		return "", err
	}
	begun := mapping.Annotations[desired.RetargetAnnotation]
	if !found || !desired.Maps(&mapping) {
		r.forget(key)
		if begun, err = r.begins(ctx, key, mapping.Generation+1); err != nil {
			return "", err
		}
	}
	return r.Keep(ctx, desired.BegunMapping(key.Namespace, key.Name, begun), in.Cluster.PatchResource || found && isRetired(&mapping))
}

// retire removes a mapping for good. First the mapping is emptied, so that it maps nothing. Then Fleet
// must compute the targets again of each Bundle that was deployed through it. When none of these
// deployments is left, the mapping is deleted. The work can be interrupted anywhere: the mapping
// records that work is left.
func (r *mappingReconciler) retire(ctx context.Context, mapping *fleetv1.BundleNamespaceMapping) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(mapping)
	want := desired.RetiredMapping(key.Namespace, key.Name)
	want.UID = mapping.UID // Without it, an apply would make a mapping that somebody has just deleted again.
	_, result, err := r.Apply(ctx, want, mapping, true)
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: retireInterval}, nil // It is gone, or a webhook of others says this of something else.
	case kube.IsAbsent(err):
		return ctrl.Result{}, client.IgnoreNotFound(r.Delete(ctx, mapping))
	case err != nil:
		return ctrl.Result{}, err
	case result != kube.Unchanged:
		r.forget(key) // The mapping was active until now: begin anew.
	}
	state, now := r.retirement(key), r.now()
	if wait := state.next.Sub(now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}

	bundles, err := r.deployedThrough(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	// While a Bundle cannot be annotated, waiting proves nothing.
	if len(bundles) == 0 || now.Sub(state.began) >= retirePatience && !state.refused {
		if len(bundles) > 0 {
			ctrl.LoggerFrom(ctx).Info("Fleet still deploys bundles of the class namespace; is another BundleNamespaceMapping in force?",
				"bundleNamespaceMapping", key.String(), "bundles", bundles)
		}
		r.forget(key)
		return ctrl.Result{}, r.Delete(ctx, mapping)
	}
	// Fleet's view of the mapping may lag behind the Bundle's change. So try again with another value,
	// at growing intervals, until Fleet has acted. A Bundle that cannot be changed does not hold up
	// the others.
	var refused error
	if state.refused || state.attempts&(state.attempts-1) == 0 {
		for _, bundle := range bundles {
			refused = errors.Join(refused, r.retarget(ctx, types.NamespacedName{Namespace: key.Namespace, Name: bundle},
				mapping.ResourceVersion+"-"+strconv.Itoa(state.attempts)))
		}
		if refused != nil && !state.refused {
			r.recorder.Eventf(mapping, nil, corev1.EventTypeWarning, "RetargetRefused", "Retire", "%s", message.Short(fmt.Sprintf(
				"Fleet still deploys these Bundles to namespace %q, and so that it looks at them again the syncer must be allowed to annotate them (or you change them in any way); it is tried again every minute: %v",
				key.Name, refused), message.Note))
		}
		state.refused = refused != nil
	}
	after := r.attempted(key, state)
	if refused != nil {
		ctrl.LoggerFrom(ctx).Error(refused, "A Bundle may not be annotated, so the mapping stays; allow the syncer to patch Bundles, or change the Bundle", "bundle", key.String())
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// deployedThrough returns the names of the Bundles in the class's namespace that Fleet deploys to
// Clusters of the other namespace.
func (r *mappingReconciler) deployedThrough(ctx context.Context, key types.NamespacedName) ([]string, error) {
	var names []string
	for next := ""; ; {
		var page metav1.PartialObjectMetadataList
		page.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("BundleDeploymentList"))
		if err := r.live.List(ctx, &page, client.MatchingLabels{
			fleetv1.BundleNamespaceLabel:  key.Namespace,
			fleetv1.ClusterNamespaceLabel: key.Name,
		}, client.Limit(listPage), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("listing BundleDeployments: %w", err)
		}
		for i := range page.Items {
			deployment := &page.Items[i]
			name := deployment.Labels[fleetv1.BundleLabel]
			// Fleet keeps BundleDeployments in a namespace of its own for each cluster. One in the
			// namespace of the Clusters, or without a Bundle, is not Fleet's.
			if deployment.DeletionTimestamp.IsZero() && name != "" && deployment.Namespace != key.Name {
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
func (r *mappingReconciler) retirement(key types.NamespacedName) retirement {
	r.mu.Lock()
	defer r.mu.Unlock()
	state, ok := r.retiring[key]
	if !ok {
		state.began = r.now()
		r.retiring[key] = state
	}
	return state
}

// attempted notes an attempt, and returns the delay until the next one.
func (r *mappingReconciler) attempted(key types.NamespacedName, state retirement) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	after := retireInterval
	if state.refused {
		after = min(lastRetry, retireInterval<<min(state.attempts, 6))
	}
	state.next, state.attempts = r.now().Add(after), state.attempts+1
	r.retiring[key] = state
	return after
}

func (r *mappingReconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.retiring, key)
}
