package sync

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// registrarInterval is how often, at most, is asked whether the registrar runs.
	registrarInterval = 10 * time.Second
	// waitingInterval is how often a Cluster whose agent has not called is looked at: the
	// registrar may be gone.
	waitingInterval = time.Minute
	// leftoverInterval is how often is asked whether Fleet has removed a namespace.
	leftoverInterval = 2 * time.Second
	// registrarPatience is for how long its Lease may not have been renewed: longer than
	// another replica takes to lead.
	registrarPatience = time.Minute
)

// registrar tells whether the program that registers Clusters ahead runs. It is optional,
// and whoever asks for what it does must hear that it is not there.
type registrar struct {
	client.Reader // past the cache
	lease         types.NamespacedName
	now           func() time.Time

	mu      sync.Mutex
	asked   time.Time
	missing bool
}

func newRegistrar(live client.Reader, namespace string) *registrar {
	return &registrar{Reader: live, lease: types.NamespacedName{Namespace: namespace, Name: stamp.RegistrarLease}, now: time.Now}
}

// isMissing reports whether the registrar does not run. In doubt it does.
func (r *registrar) isMissing(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if now.Sub(r.asked) < registrarInterval {
		return r.missing
	}
	r.asked = now
	var lease coordinationv1.Lease
	switch err := r.Get(ctx, r.lease, &lease); {
	case apierrors.IsNotFound(err):
		r.missing = true
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Reading the Lease of the registrar failed; it is taken to run", "lease", r.lease.String())
		r.missing = false
	default:
		renewed := lease.Spec.RenewTime
		r.missing = renewed == nil || now.Sub(renewed.Time) > registrarPatience
	}
	return r.missing
}
