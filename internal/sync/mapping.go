package sync

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	gosync "sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// retargetAnnotation is changed on a Bundle to make Fleet work out its targets
// again: Fleet watches Bundles, but not the mappings that decide their targets.
const retargetAnnotation = stamp.Domain + "/retarget"

const (
	retireInterval = time.Second
	// maxRetireRounds bounds how long a mapping waits for Fleet to drop what was
	// deployed through it. Fleet looks at every Bundle when it starts, so a Fleet
	// that is down may safely be left behind.
	maxRetireRounds = 60
)

// mappingReconciler keeps BundleNamespaceMappings: one for each pair of a class
// namespace and a namespace with claimed Clusters that use its classes. Its key is
// the mapping's own: namespace = class namespace, name = namespace of the Clusters.
type mappingReconciler struct {
	client.Reader
	*apply.Applier
	// live reads Bundles and BundleDeployments past the cache: they are needed only
	// while a mapping goes.
	live     client.Reader
	users    users
	settings *settingsReader
	// busy keeps apart those who look at the same mapping, as groupReconciler's does.
	busy keymutex.KeyMutex

	mu     gosync.Mutex
	rounds map[types.NamespacedName]int
}

// Reconcile makes one mapping as it should be, or retires and then deletes it.
func (r *mappingReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.busy.LockKey(req.String())
	defer func() { _ = r.busy.UnlockKey(req.String()) }() // It fails never.
	current, err := r.settings.current(ctx)
	if err != nil || !current.Cluster.Enabled {
		return ctrl.Result{}, err
	}
	var mapping fleetv1.BundleNamespaceMapping
	found, err := r.Store.Get(ctx, req.NamespacedName, &mapping)
	if err != nil {
		return ctrl.Result{}, err
	}
	var live client.Object
	if found {
		live = &mapping
		if !mapping.DeletionTimestamp.IsZero() {
			return ctrl.Result{}, nil
		}
		if !apply.IsOurs(&mapping) {
			ctrl.LoggerFrom(ctx).Info("Left alone a BundleNamespaceMapping that somebody else made; rename it, or annotate it to hand it over",
				"object", req.String())
			return ctrl.Result{}, nil
		}
	}

	if current.Cluster.ApplyClassGroup {
		used, err := r.users.class(ctx, req.Name, byClassNamespace, req.Namespace)
		if err != nil {
			return ctrl.Result{}, err
		}
		if used.Name != "" {
			r.setRound(req.NamespacedName, 0)
			_, err := r.Apply(ctx, desired.Mapping(req.Namespace, req.Name), live, current.Cluster.PatchResource || isRetired(&mapping))
			if apply.IsAbsent(err) {
				err = nil // The class's namespace is gone or going: no bundle to map.
			}
			return ctrl.Result{}, err
		}
	}
	if !found {
		return ctrl.Result{}, nil
	}
	if current.Cluster.ApplyClassGroup {
		awaited, err := r.users.awaited(ctx, current, req.Name, func(cluster *clusterv1.Cluster) bool {
			return wishOf(cluster).Namespace == req.Namespace
		})
		if err != nil || awaited {
			return ctrl.Result{}, err // Its claim brings us back.
		}
	}
	return r.retire(ctx, &mapping)
}

// retire takes a mapping away for good: first it maps nothing, then Fleet is made to
// look again at each Bundle that was deployed through it, and when nothing of it is
// left the mapping goes. It can be interrupted anywhere: the mapping remembers.
func (r *mappingReconciler) retire(ctx context.Context, mapping *fleetv1.BundleNamespaceMapping) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(mapping)
	result, err := r.Apply(ctx, desired.RetiredMapping(key.Namespace, key.Name), mapping, true)
	if err != nil {
		if apply.IsAbsent(err) {
			return ctrl.Result{}, client.IgnoreNotFound(r.Delete(ctx, mapping))
		}
		return ctrl.Result{}, err
	}
	round := r.round(key)
	if result != apply.Unchanged {
		round = 0 // Somebody or a former life made it map again.
	}

	bundles, err := r.deployedThrough(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(bundles) == 0 || round >= maxRetireRounds {
		if len(bundles) > 0 {
			ctrl.LoggerFrom(ctx).Info("Fleet still deploys bundles of the class namespace; is another BundleNamespaceMapping in force?",
				"object", key.String(), "bundles", bundles)
		}
		r.setRound(key, 0)
		return ctrl.Result{}, r.Delete(ctx, mapping)
	}
	// Fleet's view of the mapping may lag behind the Bundle's change, so try again
	// with another value until it has acted; at growing distances.
	if round&(round-1) == 0 {
		for _, bundle := range bundles {
			if err := r.retarget(ctx, types.NamespacedName{Namespace: key.Namespace, Name: bundle},
				mapping.ResourceVersion+"-"+strconv.Itoa(round)); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	r.setRound(key, round+1)
	return ctrl.Result{RequeueAfter: retireInterval}, nil
}

// deployedThrough returns the names of the Bundles beside the class that Fleet
// deploys to Clusters of the other namespace.
func (r *mappingReconciler) deployedThrough(ctx context.Context, key types.NamespacedName) ([]string, error) {
	var deployments metav1.PartialObjectMetadataList
	deployments.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("BundleDeploymentList"))
	if err := r.live.List(ctx, &deployments, client.MatchingLabels{
		fleetv1.BundleNamespaceLabel:  key.Namespace,
		fleetv1.ClusterNamespaceLabel: key.Name,
	}); err != nil {
		return nil, fmt.Errorf("listing BundleDeployments: %w", err)
	}
	var names []string
	for i := range deployments.Items {
		if deployments.Items[i].DeletionTimestamp.IsZero() {
			names = append(names, deployments.Items[i].Labels[fleetv1.BundleLabel])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (r *mappingReconciler) retarget(ctx context.Context, key types.NamespacedName, value string) error {
	bundle := &metav1.PartialObjectMetadata{}
	bundle.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Bundle"))
	bundle.Namespace, bundle.Name = key.Namespace, key.Name
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, retargetAnnotation, value)
	err := r.Client.Patch(ctx, bundle, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(desired.FieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("making Fleet look again at Bundle %s: %w", key, err)
	}
	ctrl.LoggerFrom(ctx).Info("Made Fleet work out a bundle's targets again", "bundle", key.String())
	return nil
}

func isRetired(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping.BundleSelector == nil && mapping.NamespaceSelector == nil
}

func (r *mappingReconciler) round(key types.NamespacedName) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rounds[key]
}

func (r *mappingReconciler) setRound(key types.NamespacedName, round int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if round == 0 {
		delete(r.rounds, key)
		return
	}
	r.rounds[key] = round
}
