package sync

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/apierror"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/sync/desired"
	"github.com/muster-fleet/muster/internal/sync/observed"
)

const (
	// errorPatience is how long a passing error may last before it is reported: a restart of
	// the API server, a lost connection.
	errorPatience = 30 * time.Second
	// messageInterval is how often, at most, a change to only the message of
	// BundlesReadyCondition is written: Fleet's messages contain counts of bundles.
	messageInterval = 15 * time.Second
	// writePatience is how long the API server may take to write conditions.
	writePatience = 2 * time.Minute
)

// reporter tells people, on the CAPI Cluster itself, what became of it. It writes beside
// the reconciler: the next Cluster's import does not wait for the last one's conditions.
type reporter struct {
	client.Client
	store    *observed.Store
	echoes   *observed.Echoes
	recorder events.EventRecorder
	now      func() time.Time
	workers  int
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu sync.Mutex
	// reports are those that are not written yet, or are being written.
	reports map[types.NamespacedName]*report
	// failing says since when a Cluster has met passing errors, messages when a message alone
	// was last written.
	failing, messages map[types.NamespacedName]time.Time
}

// report is what to write on a Cluster. A later one replaces it.
type report struct {
	uid types.UID
	outcome
}

func newReporter(writer client.Client, store *observed.Store, echoes *observed.Echoes, recorder events.EventRecorder, workers int) *reporter {
	return &reporter{
		Client: writer, store: store, echoes: echoes, recorder: recorder, now: time.Now, workers: workers,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(retries[types.NamespacedName](),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "conditions"}),
		reports: map[types.NamespacedName]*report{},
		failing: map[types.NamespacedName]time.Time{}, messages: map[types.NamespacedName]time.Time{},
	}
}

// report has the conditions of an outcome written, and an event if FleetImported changes. It
// returns whether there is news.
func (r *reporter) report(ctx context.Context, cluster *clusterv1.Cluster, result outcome) (bool, error) {
	key := client.ObjectKeyFromObject(cluster)
	r.mu.Lock()
	defer r.mu.Unlock()
	// A report that is being written may have just become wrong.
	if _, isUnderWay := r.reports[key]; !isUnderWay {
		// What the visit began with may be older than what was written meanwhile.
		current, have, err := r.read(ctx, key, cluster.UID)
		if err != nil || current == nil {
			return false, err
		}
		if _, news := r.merge(have, result); news == nothing {
			return false, nil
		}
	}
	r.reports[key] = &report{cluster.UID, result}
	r.queue.Add(key)
	return true, nil
}

// read reads a Cluster, nil if it is gone, and our conditions on it, including those that the
// cache does not show yet.
func (r *reporter) read(ctx context.Context, key types.NamespacedName, uid types.UID) (*clusterv1.Cluster, []metav1.Condition, error) {
	echo := r.echoes.Of(uid)
	cluster := &clusterv1.Cluster{}
	found, err := r.store.Get(ctx, key, cluster)
	if err != nil || !found || cluster.UID != uid {
		return nil, nil, err
	}
	return cluster, echo.Conditions(cluster), nil
}

// Start writes reports until the context ends. It is a manager's Runnable.
func (r *reporter) Start(ctx context.Context) error {
	var writers sync.WaitGroup
	for range r.workers {
		writers.Go(func() {
			for r.writeNext(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.queue.ShutDown()
	writers.Wait()
	return nil
}

func (r *reporter) writeNext(ctx context.Context) bool {
	key, shutdown := r.queue.Get()
	if shutdown {
		return false
	}
	defer r.queue.Done(key)
	r.mu.Lock()
	current := r.reports[key]
	r.mu.Unlock()
	if current == nil || ctx.Err() != nil {
		r.queue.Forget(key)
		return true
	}
	wait, err := r.write(ctx, key, current)
	switch {
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Writing conditions failed; it is tried again", "object", key.String())
		r.queue.AddRateLimited(key)
		return true
	case wait > 0:
		r.queue.AddAfter(key, wait)
		return true
	}
	r.queue.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reports[key] == current {
		delete(r.reports, key)
	}
	return true
}

// write writes the conditions of an outcome. It costs no request when there is no news. If it
// defers the write, it says for how long.
func (r *reporter) write(ctx context.Context, key types.NamespacedName, result *report) (time.Duration, error) {
	// Requests have no deadline of their own.
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	cluster, have, err := r.read(ctx, key, result.uid)
	if err != nil || cluster == nil {
		return 0, err
	}
	wanted, news := r.merge(have, result.outcome)
	switch news {
	case nothing:
		return 0, nil
	case messageOnly:
		if wait := r.damp(key); wait > 0 {
			return wait, nil
		}
	}
	before := meta.FindStatusCondition(have, ImportedCondition)
	if err := r.apply(ctx, cluster, wanted); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if after := meta.FindStatusCondition(wanted, ImportedCondition); after != nil &&
		(before == nil || before.Status != after.Status || before.Reason != after.Reason) {
		r.event(cluster, after)
	}
	return 0, nil
}

// isPassing reports whether an error is a passing one, and has not lasted long.
func (r *reporter) isPassing(key types.NamespacedName, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil || !apierror.IsPassing(err) {
		delete(r.failing, key)
		return false
	}
	since, known := r.failing[key]
	if !known {
		since = r.now()
		r.failing[key] = since
	}
	return r.now().Sub(since) < errorPatience
}

// damp returns how long a change to only the message must wait; if it need not, damp notes
// that it is written now.
func (r *reporter) damp(key types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if wait := r.messages[key].Add(messageInterval).Sub(now); wait > 0 {
		return wait
	}
	r.messages[key] = now
	return 0
}

// forget drops a Cluster that is gone.
func (r *reporter) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failing, key)
	delete(r.messages, key)
	delete(r.reports, key)
}

// news says what about the conditions is new.
type news int

const (
	nothing news = iota
	messageOnly
	everything
)

// merge returns all our conditions as they should be, with the time of their last transition,
// and what is new about them.
func (r *reporter) merge(have []metav1.Condition, result outcome) (wanted []metav1.Condition, what news) {
	for _, conditionType := range conditionTypes {
		old := meta.FindStatusCondition(have, conditionType)
		want := meta.FindStatusCondition(result.conditions, conditionType)
		if result.passing && want != nil && old != nil {
			want.Status = old.Status
		}
		if want != nil {
			want.Message = message.Short(want.Message, message.Condition)
		}
		switch {
		case want == nil && old == nil:
		case want == nil && result.keep:
			wanted = append(wanted, *old)
		case want == nil:
			what = everything
		case old != nil && old.Status == want.Status:
			want.LastTransitionTime = old.LastTransitionTime
			switch {
			case old.Reason == want.Reason && old.Message == want.Message:
			case old.Reason == want.Reason && conditionType == BundlesReadyCondition:
				what = max(what, messageOnly)
			default:
				what = everything
			}
			wanted = append(wanted, *want)
		default:
			want.LastTransitionTime = metav1.NewTime(r.now().Truncate(time.Second))
			what = everything
			wanted = append(wanted, *want)
		}
	}
	return wanted, what
}

func (r *reporter) apply(ctx context.Context, cluster *clusterv1.Cluster, wanted []metav1.Condition) error {
	if wanted == nil {
		wanted = []metav1.Condition{}
	}
	configuration, err := json.Marshal(map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(),
		"kind":       clusterv1.ClusterKind,
		"metadata":   map[string]any{"namespace": cluster.Namespace, "name": cluster.Name, "uid": cluster.UID},
		"status":     map[string]any{"conditions": wanted},
	})
	if err != nil {
		return err
	}
	// Only the metadata is asked for in return.
	answer := &metav1.PartialObjectMetadata{}
	answer.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind))
	answer.Namespace, answer.Name = cluster.Namespace, cluster.Name
	answered := r.echoes.Writing(cluster)
	if err := r.Status().Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, configuration),
		client.FieldOwner(desired.FieldManager), client.ForceOwnership); err != nil {
		answered(nil)
		return err
	}
	answered(answer, wanted...)
	return nil
}

func (r *reporter) event(cluster *clusterv1.Cluster, condition *metav1.Condition) {
	eventType, note := corev1.EventTypeNormal, message.Short(condition.Message, message.Note)
	switch condition.Reason {
	case reasonWaiting:
		return // Every Cluster waits, and its own events say what for.
	case reasonConflict, reasonUnresolved, reasonFailed, reasonRegistrar:
		eventType = corev1.EventTypeWarning
	}
	r.recorder.Eventf(cluster, nil, eventType, condition.Reason, "Import", "%s", note)
}
