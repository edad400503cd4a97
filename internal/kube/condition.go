package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/message"
)

// Merge returns the conditions that a writer should apply to an object of this generation, given those that the object has,
// and the types of those that change or go. Owned are the types that the writer may have there. A wanted condition with a
// generation of its own keeps it, one whose status stays keeps the time of its transition, and long messages are cut.
func Merge(have []metav1.Condition, owned []string, generation int64, now time.Time, want ...metav1.Condition) (conditions []metav1.Condition, changed []string) {
	for _, its := range want {
		old := meta.FindStatusCondition(have, its.Type)
		its.Message = message.Short(its.Message, message.Condition)
		its.ObservedGeneration = cmp.Or(its.ObservedGeneration, generation)
		its.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
		if old != nil && old.Status == its.Status {
			its.LastTransitionTime = old.LastTransitionTime
		}
		if !says(old, its) {
			changed = append(changed, its.Type)
		}
		conditions = append(conditions, its)
	}
	for _, conditionType := range owned {
		if meta.FindStatusCondition(have, conditionType) != nil && meta.FindStatusCondition(want, conditionType) == nil {
			changed = append(changed, conditionType)
		}
	}
	return conditions, changed
}

// says reports whether a condition equals the wanted one. It is nil if there is none. A condition without a generation, by an
// earlier version of Muster, gets that with its next change.
func says(have *metav1.Condition, want metav1.Condition) bool {
	if have == nil {
		return false
	}
	was := *have
	was.ObservedGeneration = cmp.Or(was.ObservedGeneration, want.ObservedGeneration)
	return was == want
}

// IsTurned reports whether a condition is new, or has another status or reason than before: then it is worth an event.
func IsTurned(before []metav1.Condition, now metav1.Condition) bool {
	old := meta.FindStatusCondition(before, now.Type)
	return old == nil || old.Status != now.Status || old.Reason != now.Reason
}

// ApplyConditions applies conditions to a Cluster, as all that the manager has there: one that it applied before and that is not
// among these goes. It returns the Cluster as it is then.
func ApplyConditions(ctx context.Context, to client.StatusClient, manager string, cluster *clusterv1.Cluster, conditions []metav1.Condition) (*clusterv1.Cluster, error) {
	if conditions == nil {
		conditions = []metav1.Condition{}
	}
	answer := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name, UID: cluster.UID}}
	return answer, ApplyStatus(ctx, to, manager, clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind), answer, map[string]any{"conditions": conditions})
}

// ApplyStatus applies fields of a status, as all that the manager has there. The object has only its name and UID, and is
// then as the API server returns it. If it was made anew, ApplyStatus returns a conflict.
func ApplyStatus(ctx context.Context, to client.StatusClient, manager string, kind schema.GroupVersionKind, object client.Object, status any) error {
	configuration, err := json.Marshal(map[string]any{
		"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind,
		"metadata": map[string]any{"namespace": object.GetNamespace(), "name": object.GetName(), "uid": object.GetUID()},
		"status":   status,
	})
	if err != nil {
		return err
	}
	if err := to.Status().Patch(ctx, object, client.RawPatch(types.ApplyPatchType, configuration), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("writing the status of %s: %w", kind.Kind, err)
	}
	return nil
}
