package sync

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	gosync "sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

const (
	// errorPatience is how long a passing error may last until it is reported: the API
	// server is restarted, a connection is cut.
	errorPatience = 30 * time.Second
	// messageInterval is how often, at most, a change of nothing but the message of
	// BundlesReadyCondition is written: Fleet's messages count bundles as they go.
	messageInterval = 15 * time.Second
)

// reporter tells people, on the CAPI Cluster itself, what became of it.
type reporter struct {
	client.Client
	store    *apply.Store
	echoes   *echoes
	recorder events.EventRecorder
	now      func() time.Time

	mu gosync.Mutex
	// failing is since when Clusters meet passing errors, messages when a message alone was
	// written last. Both hold only what is news.
	failing, messages map[types.NamespacedName]time.Time
}

func newReporter(writer client.Client, store *apply.Store, echoes *echoes, recorder events.EventRecorder) *reporter {
	return &reporter{
		Client: writer, store: store, echoes: echoes, recorder: recorder, now: time.Now,
		failing: map[types.NamespacedName]time.Time{}, messages: map[types.NamespacedName]time.Time{},
	}
}

// report writes the conditions of an outcome, and an event when FleetImported turns.
// It costs no request when there is no news. If it puts something off, it says for how long.
func (r *reporter) report(ctx context.Context, cluster *clusterv1.Cluster, result outcome) (time.Duration, error) {
	wanted, news := r.merge(cluster.Status.Conditions, result)
	switch news {
	case nothing:
		return 0, nil
	case messageOnly:
		if wait := r.damp(client.ObjectKeyFromObject(cluster)); wait > 0 {
			return wait, nil
		}
	}
	before := meta.FindStatusCondition(cluster.Status.Conditions, ImportedCondition)
	if err := r.apply(ctx, cluster, wanted); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("writing conditions: %w", err))
	}
	if after := meta.FindStatusCondition(wanted, ImportedCondition); after != nil &&
		(before == nil || before.Status != after.Status || before.Reason != after.Reason) {
		r.event(cluster, after)
	}
	return 0, nil
}

// isPassing reports whether an error is of those that pass, and has not lasted long.
func (r *reporter) isPassing(key types.NamespacedName, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil || !apply.IsPassing(err) {
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

// damp returns how long a message alone must wait to be written, and notes that it is
// written now if it need not.
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
}

// news says what about the conditions is new.
type news int

const (
	nothing news = iota
	messageOnly
	everything
)

// merge returns all conditions of ours as they should be, with the time of their
// last transition, and what is new about them.
func (r *reporter) merge(have []metav1.Condition, result outcome) (wanted []metav1.Condition, what news) {
	for _, conditionType := range []string{ImportedCondition, BundlesReadyCondition} {
		old := meta.FindStatusCondition(have, conditionType)
		want := meta.FindStatusCondition(result.conditions, conditionType)
		if result.passing && want != nil && old != nil {
			want.Status = old.Status
		}
		if want != nil {
			want.Message = short(want.Message)
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

// longest is how long a message may be, in bytes. The API server refuses conditions with
// more than 32 KiB, and what Fleet or an admission webhook says has no bound.
const longest = 4 << 10

func short(message string) string {
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest], "") + "…"
}

func (r *reporter) apply(ctx context.Context, cluster *clusterv1.Cluster, wanted []metav1.Condition) error {
	if wanted == nil {
		wanted = []metav1.Condition{}
	}
	configuration, err := json.Marshal(map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(),
		"kind":       clusterv1.ClusterKind,
		"metadata":   map[string]any{"namespace": cluster.Namespace, "name": cluster.Name},
		"status":     map[string]any{"conditions": wanted},
	})
	if err != nil {
		return err
	}
	written := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
	if err := r.Status().Patch(ctx, written, client.RawPatch(types.ApplyPatchType, configuration),
		client.FieldOwner(desired.FieldManager), client.ForceOwnership); err != nil {
		return err
	}
	if _, err := apply.TrimCached(written); err != nil {
		return err
	}
	r.echoes.wrote(written)
	return r.store.Wrote(written)
}

func (r *reporter) event(cluster *clusterv1.Cluster, condition *metav1.Condition) {
	eventType, message := corev1.EventTypeNormal, condition.Message
	switch condition.Reason {
	case reasonWaiting:
		return // Every Cluster does, and its own events say what for.
	case reasonConflict, reasonUnresolved, reasonFailed:
		eventType = corev1.EventTypeWarning
	}
	r.recorder.Eventf(cluster, nil, eventType, condition.Reason, "Import", "%s", message)
}
