package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// required holds the kinds that the syncer cannot work without, by the names of their CRDs.
var required = map[string]schema.GroupVersionKind{
	"clusters.cluster.x-k8s.io":               clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind),
	"clusterclasses.cluster.x-k8s.io":         clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind),
	fleetClusterCRD:                           fleetv1.SchemeGroupVersion.WithKind("Cluster"),
	"clustergroups.fleet.cattle.io":           fleetv1.SchemeGroupVersion.WithKind("ClusterGroup"),
	"bundlenamespacemappings.fleet.cattle.io": fleetv1.SchemeGroupVersion.WithKind("BundleNamespaceMapping"),
}

// configCRD is the name of the CRD of the FleetAddonConfig.
const configCRD = "fleetaddonconfigs.addons.cluster.x-k8s.io"

// ownCRDs are the CRDs of Muster's kinds. HelmChartProxies and HelmReleaseProxies may be of another program.
var ownCRDs = []string{configCRD, stamp.HelmCRD, "helmreleaseproxies.addons.cluster.x-k8s.io"}

// reportedCRDs passes the CRDs of the required kinds, and of Muster's own.
var reportedCRDs = predicate.NewPredicateFuncs(func(crd client.Object) bool {
	_, isRequired := required[crd.GetName()]
	return isRequired || slices.Contains(ownCRDs, crd.GetName())
})

// olderCRDs says which of Muster's CRDs are older than the program; empty if none is.
func olderCRDs(ctx context.Context, crds client.Reader) (string, error) {
	var older []string
	for _, name := range ownCRDs {
		crd := references.CRD()
		if err := crds.Get(ctx, client.ObjectKey{Name: name}, crd); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return "", fmt.Errorf("reading CRD %s: %w", name, err)
		}
		isOurs := name == configCRD || crd.Labels[stamp.ManagedByLabel] == stamp.ManagedBy
		if revision, _ := strconv.Atoi(crd.Annotations[addonsv1.SchemaRevisionAnnotation]); isOurs && revision < addonsv1.SchemaRevision {
			older = append(older, name)
		}
	}
	if older == nil {
		return "", nil
	}
	return "older than the syncer: CRD " + strings.Join(older, ", CRD ") + "; apply the CRDs of the syncer's version, nothing needs to be restarted", nil
}

// Gate holds the reconcilers back until the kinds they watch are served, so that
// Muster, Cluster API and Fleet may be installed in any order.
type Gate struct {
	crds   client.Reader
	mapper meta.RESTMapper
	open   func(context.Context) error
	// opened means that the reconcilers are set up, or are being set up.
	opened atomic.Bool
}

// Start waits for the kinds, then opens. It is a manager's Runnable.
func (g *Gate) Start(ctx context.Context) error {
	if kinds.WaitServed(ctx, g.missing) != nil {
		return nil //nolint:nilerr // the program stops
	}
	g.opened.Store(true)
	return g.open(ctx)
}

// missing names the required kinds that are not served, or returns "". A kind, with all its objects,
// may disappear while Muster runs. The mapper never forgets a kind, so missing reads the CRDs, too.
func (g *Gate) missing(ctx context.Context) (string, error) {
	var missing []string
	for name, kind := range required {
		crd := references.CRD()
		err := g.crds.Get(ctx, client.ObjectKey{Name: name}, crd)
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("reading CRD %s: %w", name, err)
		}
		if err == nil && crd.DeletionTimestamp.IsZero() {
			_, err = g.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		}
		if err != nil || !crd.DeletionTimestamp.IsZero() {
			missing = append(missing, kind.GroupKind().String())
		}
	}
	slices.Sort(missing)
	metrics.Condition(addonsv1.APIsAvailableCondition, len(missing) == 0)
	return strings.Join(missing, ", "), nil
}

// unservedInterval is how often we retry work that a missing CRD prevents. It does not grow: most
// often a CRD is missing only for a moment, while it is replaced.
const unservedInterval = 10 * time.Second

// patient retries while a kind is not served. When one of Fleet's CRDs is deleted, its objects are
// deleted with it, and no event says when they are back.
type patient struct{ reconcile.Reconciler }

// Reconcile calls the wrapped reconciler.
func (p patient) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	result, err := p.Reconciler.Reconcile(ctx, req)
	if kube.IsUnserved(err) {
		return ctrl.Result{RequeueAfter: unservedInterval}, nil
	}
	return result, err
}

// fleetFields says which fields of Fleet Clusters the API server serves: an apply with another one is refused. It reads the
// CRD, which is large, once for each generation.
type fleetFields struct {
	crds client.Reader // the metadata, from the cache
	live client.Reader

	mu          sync.Mutex
	of          types.UID
	generation  int64
	pullSecrets bool
}

// fleetClusterCRD is the name of the CRD of Fleet Clusters.
const fleetClusterCRD = "clusters.fleet.cattle.io"

// havePullSecrets reports whether Fleet Clusters have the field agentPullSecrets: Fleet has it since 0.16. Without a CRD, which
// others report, they do.
func (f *fleetFields) havePullSecrets(ctx context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, crd := client.ObjectKey{Name: fleetClusterCRD}, references.CRD()
	if err := f.crds.Get(ctx, key, crd, client.UnsafeDisableDeepCopy); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	if f.of == crd.UID && f.generation == crd.Generation {
		return f.pullSecrets, nil
	}
	whole := &unstructured.Unstructured{}
	whole.SetGroupVersionKind(crd.GroupVersionKind())
	if err := f.live.Get(ctx, key, whole); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading CRD %s: %w", fleetClusterCRD, err)
	}
	f.of, f.generation, f.pullSecrets = whole.GetUID(), whole.GetGeneration(), false
	versions, _, _ := unstructured.NestedSlice(whole.Object, "spec", "versions")
	for _, its := range versions {
		version, _ := its.(map[string]any)
		_, found, _ := unstructured.NestedFieldNoCopy(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "agentPullSecrets")
		f.pullSecrets = f.pullSecrets || found && version["name"] == fleetv1.SchemeGroupVersion.Version
	}
	return f.pullSecrets, nil
}

// limit returns settings without what Fleet Clusters have no field for.
func (f *fleetFields) limit(ctx context.Context, in *settings.InForce) (*settings.InForce, error) {
	if in.Cluster.AgentPullSecrets == nil {
		return in, nil
	}
	if served, err := f.havePullSecrets(ctx); served || err != nil {
		return in, err
	}
	limited := *in
	limited.Cluster.AgentPullSecrets = nil
	limited.Effect += " without agentPullSecrets"
	return &limited, nil
}

// check returns, as unserved, which settings Fleet Clusters have no field for.
func (f *fleetFields) check(ctx context.Context, in *settings.InForce) (unserved, err error) {
	limited, err := f.limit(ctx, in)
	if limited != in {
		unserved = errors.New("spec.cluster.agentPullSecrets has no effect: the CRD " + fleetClusterCRD + " has no such field; install Fleet 0.16 or newer")
	}
	return unserved, err
}

// fleetClusterFields passes changes of the CRD of Fleet Clusters.
var fleetClusterFields = predicate.And[client.Object](
	predicate.NewPredicateFuncs(func(crd client.Object) bool { return crd.GetName() == fleetClusterCRD }), afterStart,
	changes(func(crd client.Object) []any { return []any{crd.GetGeneration()} }),
)
