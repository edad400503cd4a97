package sync

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

const (
	// errorGracePeriod is how long a passing error may last before it is reported: a restart of
	// the API server, a lost connection.
	errorGracePeriod = 30 * time.Second
	// messageInterval is how often, at most, a change to only the message of
	// FleetBundlesReadyCondition is written: Fleet's messages contain counts of bundles.
	messageInterval = 15 * time.Second
)

// reporter writes the outcome of a reconcile to the CAPI Cluster itself.
type reporter struct {
	client.Client
	store    *kube.Store
	recorder events.EventRecorder
	now      func() time.Time

	mu    sync.Mutex
	since map[types.NamespacedName]moments
}

// moments are times that matter to the next reconcile of a Cluster; each is zero if there is none.
type moments struct {
	failing time.Time // when it first met passing errors
	message time.Time // when a changed message alone was last written
	lacking time.Time // when its Fleet Cluster was first seen without a namespace
}

func newReporter(writer client.Client, store *kube.Store, recorder events.EventRecorder) *reporter {
	return &reporter{
		Client: writer, store: store, recorder: recorder, now: time.Now,
		since: map[types.NamespacedName]moments{},
	}
}

// report writes the conditions of an outcome, and an event if FleetImported changes. It sends no
// request if the Cluster, as read from the store, has these conditions already. It returns the delay if the write must wait.
func (r *reporter) report(ctx context.Context, cluster *clusterv1.Cluster, result outcome) (again time.Duration, err error) {
	have := cluster.Status.Conditions
	wanted, changed := kube.Merge(have, conditionTypes, cluster.Generation, r.now(), result.given(have)...)
	if changed == nil {
		return 0, nil
	}
	if isMessageOnly(have, wanted, changed) {
		if wait := r.damp(client.ObjectKeyFromObject(cluster)); wait > 0 {
			return wait, nil
		}
	}
	now, err := kube.ApplyConditions(ctx, r, desired.FieldManager, cluster, wanted)
	if err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if imported := meta.FindStatusCondition(wanted, addonsv1.FleetImportedCondition); imported != nil && kube.IsTurned(have, *imported) {
		r.event(cluster, imported)
	}
	return 0, r.store.Wrote(ctx, now)
}

// isMessageOnly reports whether nothing but the message of FleetBundlesReady changes.
func isMessageOnly(have, wanted []metav1.Condition, changed []string) bool {
	if !slices.Equal(changed, []string{addonsv1.FleetBundlesReadyCondition}) {
		return false
	}
	was, now := meta.FindStatusCondition(have, changed[0]), meta.FindStatusCondition(wanted, changed[0])
	return now != nil && !kube.IsTurned(have, *now) && was.Message != now.Message
}

// isBrief reports whether an error is a passing one that has not lasted long, and returns how long
// it has lasted.
func (r *reporter) isBrief(key types.NamespacedName, err error) (lasted time.Duration, isBrief bool) {
	fails := err != nil && (kube.IsPassing(err) || apierrors.IsConflict(err))
	lasted = r.lasted(key, fails, func(its *moments) *time.Time { return &its.failing })
	return lasted, fails && lasted < errorGracePeriod
}

// lacking returns how long the Fleet Cluster of a Cluster has been without its namespace, if it is.
func (r *reporter) lacking(key types.NamespacedName, lacks bool) time.Duration {
	return r.lasted(key, lacks, func(its *moments) *time.Time { return &its.lacking })
}

// lasted returns how long something holds for a Cluster, and notes since when.
func (r *reporter) lasted(key types.NamespacedName, holds bool, of func(*moments) *time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	its := r.since[key]
	since := of(&its)
	switch {
	case !holds && since.IsZero():
		return 0
	case !holds:
		*since = time.Time{}
	case since.IsZero():
		*since = r.now()
	}
	if r.since[key] = its; its == (moments{}) {
		delete(r.since, key)
	}
	if !holds {
		return 0
	}
	return r.now().Sub(*since)
}

// damp returns how long a change to only the message must wait. If it need not wait, damp notes that
// it is written now.
func (r *reporter) damp(key types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	its, now := r.since[key], r.now()
	if wait := its.message.Add(messageInterval).Sub(now); wait > 0 {
		return wait
	}
	its.message = now
	r.since[key] = its
	return 0
}

// forget drops a deleted Cluster.
func (r *reporter) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, key)
}

func (r *reporter) event(cluster *clusterv1.Cluster, condition *metav1.Condition) {
	eventType, note := corev1.EventTypeNormal, message.Short(cmp.Or(condition.Message, "the Cluster is in Fleet"), message.Note)
	switch condition.Reason {
	case addonsv1.WaitingForControlPlaneReason:
		return // Every Cluster waits, and its own events give the reason.
	case addonsv1.NameConflictReason, addonsv1.TemplateValuesUnresolvedReason, addonsv1.TooMuchMetadataReason, addonsv1.FailedReason, addonsv1.RegistrarMissingReason, addonsv1.DoubleImportReason:
		eventType = corev1.EventTypeWarning
	}
	r.recorder.Eventf(cluster, nil, eventType, condition.Reason, "Import", "%s", note)
}
