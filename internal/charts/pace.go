package charts

import (
	"bytes"
	"context"
	"hash/fnv"
	"maps"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/settings"
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

// memory keeps what was rendered, by what it was rendered from: rendering anew for each
// event of each Cluster would be most of the work. So would be to work out what templates
// may read of a Cluster: that is kept by its version.
type memory struct {
	mu  sync.Mutex
	all map[plan.Key]map[types.UID]remembered
}

type remembered struct {
	// seen is the version of the Cluster, and which settings there were, and read the digest of
	// what templates may read of it then.
	seen seen
	read uint64
	// values are what was rendered from what has this digest.
	digest uint64
	values []byte
}

type seen struct{ version, effect string }

func newMemory() *memory { return &memory{all: map[plan.Key]map[types.UID]remembered{}} }

// read returns the digest of what templates may read of a Cluster.
func (m *memory) read(proxy plan.Key, cluster *clusterv1.Cluster, in *settings.InForce) (uint64, error) {
	now := seen{cluster.ResourceVersion, in.Effect}
	m.mu.Lock()
	known := m.all[proxy][cluster.UID]
	m.mu.Unlock()
	if known.seen == now && now.version != "" {
		return known.read, nil
	}
	digest := fnv.New64a()
	if err := plan.WriteRead(cluster, in.Cluster.Exclude, digest); err != nil {
		return 0, err
	}
	m.change(proxy, cluster.UID, func(its *remembered) { its.seen, its.read = now, digest.Sum64() })
	return digest.Sum64(), nil
}

func (m *memory) get(proxy plan.Key, cluster types.UID, digest uint64) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.all[proxy][cluster]
	return known.values, known.values != nil && known.digest == digest
}

func (m *memory) put(proxy plan.Key, cluster types.UID, digest uint64, values []byte) {
	// As it was written it has room for more, which would stay as long as it does.
	m.change(proxy, cluster, func(its *remembered) { its.digest, its.values = digest, bytes.Clone(values) })
}

func (m *memory) change(proxy plan.Key, cluster types.UID, change func(*remembered)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[proxy] == nil {
		m.all[proxy] = map[types.UID]remembered{}
	}
	its := m.all[proxy][cluster]
	change(&its)
	m.all[proxy][cluster] = its
}

// keep forgets all but these Clusters.
func (m *memory) keep(proxy plan.Key, clusters []*selected) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all[proxy]) == 0 {
		return
	}
	there := make(map[types.UID]bool, len(clusters))
	for _, cluster := range clusters {
		there[cluster.UID] = true
	}
	maps.DeleteFunc(m.all[proxy], func(cluster types.UID, _ remembered) bool { return !there[cluster] })
}

func (m *memory) forget(proxy plan.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, proxy)
}
