package sync

import (
	"context"
	"encoding/json"
	"fmt"
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

// reporter tells people, on the CAPI Cluster itself, what became of it.
type reporter struct {
	client.Client
	store    *apply.Store
	echoes   *echoes
	recorder events.EventRecorder
	now      func() time.Time
}

// report writes the conditions of an outcome, and an event when FleetImported turns.
// It costs no request when there is no news.
func (r *reporter) report(ctx context.Context, cluster *clusterv1.Cluster, result outcome) error {
	wanted, news := r.merge(cluster.Status.Conditions, result)
	if !news {
		return nil
	}
	before := meta.FindStatusCondition(cluster.Status.Conditions, ImportedCondition)
	if err := r.apply(ctx, cluster, wanted); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing conditions: %w", err))
	}
	if after := meta.FindStatusCondition(wanted, ImportedCondition); after != nil &&
		(before == nil || before.Status != after.Status || before.Reason != after.Reason) {
		r.event(cluster, after)
	}
	return nil
}

// merge returns all conditions of ours as they should be, with the time of their
// last transition, and whether that is news.
func (r *reporter) merge(have []metav1.Condition, result outcome) (wanted []metav1.Condition, news bool) {
	for _, conditionType := range []string{ImportedCondition, BundlesReadyCondition} {
		old := meta.FindStatusCondition(have, conditionType)
		want := meta.FindStatusCondition(result.conditions, conditionType)
		switch {
		case want == nil && old == nil:
		case want == nil && result.keep:
			wanted = append(wanted, *old)
		case want == nil:
			news = true
		case old != nil && old.Status == want.Status:
			want.LastTransitionTime = old.LastTransitionTime
			news = news || old.Reason != want.Reason || old.Message != want.Message
			wanted = append(wanted, *want)
		default:
			want.LastTransitionTime = metav1.NewTime(r.now().Truncate(time.Second))
			news = true
			wanted = append(wanted, *want)
		}
	}
	return wanted, news
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
