package sync

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/metrics"
)

const gateInterval = 2 * time.Second

// required holds the kinds that the syncer cannot work without, by the names of their CRDs.
var required = map[string]schema.GroupVersionKind{
	"clusters.cluster.x-k8s.io":               clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind),
	"clusterclasses.cluster.x-k8s.io":         clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind),
	"clusters.fleet.cattle.io":                fleetv1.SchemeGroupVersion.WithKind("Cluster"),
	"clustergroups.fleet.cattle.io":           fleetv1.SchemeGroupVersion.WithKind("ClusterGroup"),
	"bundlenamespacemappings.fleet.cattle.io": fleetv1.SchemeGroupVersion.WithKind("BundleNamespaceMapping"),
}

// requiredCRDs passes the CRDs of the required kinds.
var requiredCRDs = predicate.NewPredicateFuncs(func(crd client.Object) bool {
	_, isRequired := required[crd.GetName()]
	return isRequired
})

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
	log := ctrl.LoggerFrom(ctx).WithName("gate")
	reported := ""
	if wait.PollUntilContextCancel(ctx, gateInterval, true, func(context.Context) (bool, error) {
		missing, err := g.missing(ctx)
		if err != nil {
			log.Error(err, "Looking for the CRDs of Cluster API and Fleet failed; it is tried again")
			return false, nil
		}
		if missing != reported {
			log.Info("Waiting for Cluster API and Fleet", "missing", missing)
			reported = missing
		}
		return missing == "", nil
	}) != nil {
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
	metrics.Condition(APIsAvailableCondition, len(missing) == 0)
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
