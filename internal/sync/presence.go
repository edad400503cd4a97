package sync

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// presenceInterval is the shortest time between two checks whether an optional program runs.
	presenceInterval = 10 * time.Second
	// presenceTimeout is how long the API server may take to answer.
	presenceTimeout = 5 * time.Second
	// waitingInterval is how often a Cluster whose agent has not checked in is reconciled: the
	// registrar may have stopped.
	waitingInterval = time.Minute
	// leftoverInterval is how often we check whether Fleet has removed a namespace.
	leftoverInterval = 2 * time.Second
	// rivalInterval is how often we check whether another Fleet Cluster has left a namespace in Fleet.
	// It is longer, because a tenant can make thousands of Clusters wait for one namespace.
	rivalInterval = 15 * time.Second
	// presencePatience is how long a Lease may go without a renewal: longer than another replica takes
	// to become the leader.
	presencePatience = time.Minute
)

// presence reports whether an optional program runs, such as the registrar or the installer. Users who
// need it must learn from the status that it is missing.
type presence struct {
	client.Reader // past the cache
	lease         types.NamespacedName
	now           func() time.Time

	// asking is held by the caller that asks, and last is the last answer; nil before the first.
	asking sync.Mutex
	last   atomic.Pointer[answer]
	// renewed is the last renewal that we saw, and since is when we saw it by our own clock: the other
	// program's clock may be wrong. Only the caller that asks uses them.
	renewed time.Time
	since   time.Time
}

// answer says whether a program was missing at a time.
type answer struct {
	at      time.Time
	missing bool
}

func newPresence(live client.Reader, namespace, lease string) *presence {
	return &presence{Reader: live, lease: types.NamespacedName{Namespace: namespace, Name: lease}, now: time.Now}
}

// isMissing reports whether the program does not run. In doubt, it returns false. While one caller
// asks, the others use the last answer, and wait only for the first.
func (r *presence) isMissing(ctx context.Context) bool {
	now, last := r.now(), r.last.Load()
	switch {
	case last == nil:
		r.asking.Lock()
	case now.Sub(last.at) < presenceInterval || !r.asking.TryLock():
		return last.missing
	}
	defer r.asking.Unlock()
	if its := r.last.Load(); its != last { // Another caller has just asked.
		return its.missing
	}
	missing := r.ask(ctx, now)
	r.last.Store(&answer{now, missing})
	return missing
}

// ask reads the Lease from the API server.
func (r *presence) ask(ctx context.Context, now time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, presenceTimeout)
	defer cancel()
	var lease coordinationv1.Lease
	switch err := r.Get(ctx, r.lease, &lease); {
	case apierrors.IsNotFound(err):
		return true
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Reading the Lease of an optional program failed; it is taken to run", "lease", r.lease.String())
		return false
	default:
		renewed := lease.Spec.RenewTime
		if renewed == nil {
			return true
		}
		if r.since.IsZero() || !renewed.Time.Equal(r.renewed) {
			r.renewed, r.since = renewed.Time, now
		}
		return now.Sub(r.since) > presencePatience
	}
}
