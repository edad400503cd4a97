package charts

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/charts/plan"
)

const (
	// rest is how many times as long as it took a look is followed by none, unless what is
	// wanted changes.
	rest = 4
	// longestRest is how long that is at most.
	longestRest = 5 * time.Second
)

// pace has looks wait for each other. A look is at all Clusters that a HelmChartProxy selects, and
// while Fleet deploys to a thousand there is news all the time of what has become of them: one look
// takes in much of it as well as many would.
type pace struct {
	mu  sync.Mutex
	all map[plan.Key]lookedAt
}

// lookedAt says how long the last look took, and until when no other is needed.
type lookedAt struct {
	took  time.Duration
	until time.Time
}

func newPace() *pace { return &pace{all: map[plan.Key]lookedAt{}} }

// begin notes that a look begins, which may take as long as the last one: but that one may have waited for a
// repository.
func (p *pace) begin(proxy plan.Key, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := p.all[proxy].took
	p.all[proxy] = lookedAt{took, now.Add(min(took, longestRest) + restAfter(took))}
}

// end notes that a look is over, and how long it took.
func (p *pace) end(proxy plan.Key, took time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.all, func(_ plan.Key, its lookedAt) bool { return now.Sub(its.until) > time.Hour })
	p.all[proxy] = lookedAt{took, now.Add(restAfter(took))}
}

// during notes that a look begins, and returns what notes that it is over.
func (p *pace) during(proxy plan.Key) (over func()) {
	begin := time.Now()
	p.begin(proxy, begin)
	return func() { p.end(proxy, time.Since(begin), time.Now()) }
}

// forget forgets one that is gone.
func (p *pace) forget(proxy plan.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, proxy)
}

func restAfter(took time.Duration) time.Duration { return min(rest*took, longestRest) }

// left returns how long the next look has to wait.
func (p *pace) left(proxy plan.Key, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.all[proxy].until.Sub(now))
}

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// paced has HelmChartProxies looked at when it is time.
func (p *pace) paced(of handler.MapFunc) handler.EventHandler {
	enqueue := func(ctx context.Context, queue requests, objects ...client.Object) {
		for _, object := range objects {
			for _, its := range of(ctx, object) {
				if left := p.left(its.NamespacedName, time.Now()); left > 0 {
					queue.AddAfter(its, left)
				} else {
					queue.Add(its)
				}
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue requests) { enqueue(ctx, queue, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue requests) {
			enqueue(ctx, queue, e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc:  func(ctx context.Context, e event.DeleteEvent, queue requests) { enqueue(ctx, queue, e.Object) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, queue requests) { enqueue(ctx, queue, e.Object) },
	}
}

// notOnlyStatus leaves out changes of nothing but a status: of a HelmReleaseProxy we write it.
var notOnlyStatus = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !isOnlyStatus(e) }}

// onlyStatus leaves out everything else.
var onlyStatus = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  isOnlyStatus,
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func isOnlyStatus(e event.UpdateEvent) bool {
	identity := func(object client.Object) []any {
		return []any{
			object.GetGeneration(), object.GetLabels(), object.GetAnnotations(), object.GetFinalizers(),
			object.GetOwnerReferences(), object.GetDeletionTimestamp().IsZero(),
		}
	}
	return reflect.DeepEqual(identity(e.ObjectOld), identity(e.ObjectNew))
}
