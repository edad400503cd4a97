package sync

import (
	"context"
	"strings"
	gosync "sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/apierror"
	"github.com/muster-fleet/muster/internal/metrics"
)

const gateInterval = 2 * time.Second

// required are the kinds without which nothing can be synced.
var required = []schema.GroupVersionKind{
	clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind),
	clusterv1.GroupVersion.WithKind(clusterv1.ClusterClassKind),
	fleetv1.SchemeGroupVersion.WithKind("Cluster"),
	fleetv1.SchemeGroupVersion.WithKind("ClusterGroup"),
	fleetv1.SchemeGroupVersion.WithKind("BundleNamespaceMapping"),
}

// Gate holds the reconcilers back until the kinds they watch are served, so that
// Muster, Cluster API and Fleet may be installed in any order.
type Gate struct {
	mapper meta.RESTMapper
	open   func(context.Context) error

	mu      gosync.Mutex
	looked  bool
	missing []string
}

// Start waits for the kinds, then opens. It is a manager's Runnable.
func (g *Gate) Start(ctx context.Context) error {
	log := ctrl.LoggerFrom(ctx).WithName("gate")
	said := ""
	if wait.PollUntilContextCancel(ctx, gateInterval, true, func(context.Context) (bool, error) {
		missing := g.look()
		if missing != said {
			log.Info("Waiting for Cluster API and Fleet", "missing", missing)
			said = missing
		}
		return missing == "", nil
	}) != nil {
		return nil //nolint:nilerr // the program stops
	}
	return g.open(ctx)
}

// Missing names the kinds that are not served yet, or returns "".
func (g *Gate) Missing() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.missing, ", ")
}

// Looked reports whether the kinds have been looked for at all.
func (g *Gate) Looked() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.looked
}

func (g *Gate) look() string {
	var missing []string
	for _, kind := range required {
		if _, err := g.mapper.RESTMapping(kind.GroupKind(), kind.Version); err != nil {
			missing = append(missing, kind.GroupKind().String())
		}
	}
	g.mu.Lock()
	g.looked, g.missing = true, missing
	g.mu.Unlock()
	metrics.Condition(APIsAvailableCondition, len(missing) == 0)
	return strings.Join(missing, ", ")
}

// unservedInterval is how often we retry what a missing CRD prevents. It does not grow: most
// often a CRD is missing for a moment, while it is replaced.
const unservedInterval = 10 * time.Second

// patient retries while a kind is not served. Fleet's CRDs take all their objects with them,
// and no event says that they are back.
type patient struct{ reconcile.Reconciler }

// Reconcile reconciles.
func (p patient) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	result, err := p.Reconciler.Reconcile(ctx, req)
	if apierror.IsUnserved(err) {
		return ctrl.Result{RequeueAfter: unservedInterval}, nil
	}
	return result, err
}
