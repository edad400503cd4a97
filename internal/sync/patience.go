package sync

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/sync/apply"
)

// unservedInterval is how often is tried what a missing CRD keeps from being done. It
// is not an error that grows rarer: a CRD is most often missing for a moment, while
// it is replaced.
const unservedInterval = 10 * time.Second

// patient tries again where a kind is not served. The CRDs of Fleet take all objects
// with them when they go, and no event says that they are back.
type patient struct{ reconcile.Reconciler }

// Reconcile reconciles.
func (p patient) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	result, err := p.Reconciler.Reconcile(ctx, req)
	if apply.IsUnserved(err) {
		return ctrl.Result{RequeueAfter: unservedInterval}, nil
	}
	return result, err
}
