package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/view"
)

// state is the input for the status of a HelmChartProxy.
type state struct {
	trouble          plan.Trouble
	notice           string
	clusters         []*clusterv1.Cluster
	releases         []*addonsv1.HelmReleaseProxy
	isSelectionKnown bool
}

func (s *state) fail(reason string, err error) {
	if s.trouble == (plan.Trouble{}) {
		s.trouble = plan.Trouble{Reason: reason, Message: err.Error()}
	}
}

// report writes the status of a HelmChartProxy if it differs, and an event if Ready changes.
func (r *Reconciler) report(ctx context.Context, proxy *addonsv1.HelmChartProxy, now state) error {
	before := &addonsv1.HelmChartProxy{}
	if err := r.Get(ctx, client.ObjectKeyFromObject(proxy), before); err != nil {
		return client.IgnoreNotFound(err)
	}
	after := before.DeepCopy()
	status := &after.Status
	conditions := plan.ProxyConditions(now.trouble, now.notice, now.releases)
	if now.isSelectionKnown {
		var left int
		if status.MatchingClusters, left = matching(now.clusters); left > 0 && conditions[1].Message == "" {
			conditions[1].Message = fmt.Sprintf("status.matchingClusters has no room for %d more", left)
		}
	}
	if status.MatchingClusters == nil { // The CRD demands it.
		status.MatchingClusters = []corev1.ObjectReference{}
	}
	SetConditions(&status.Conditions, proxy.Generation, conditions, r.Now())
	meta.RemoveStatusCondition(&status.Conditions, addonsv1.NotManagedCondition)
	status.ObservedGeneration = proxy.Generation
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	if err := r.patchStatus(ctx, before, after); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.announce(before, after)
	return nil
}

// SetConditions sets conditions. It shortens and cleans the messages: Fleet and Helm do not limit them, and
// they may contain text from other users.
func SetConditions(conditions *[]metav1.Condition, generation int64, wanted []metav1.Condition, now time.Time) {
	for _, condition := range wanted {
		condition.Message = message.Short(view.Text(condition.Message), message.Condition)
		condition.ObservedGeneration = generation
		condition.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		meta.SetStatusCondition(conditions, condition)
	}
}

const (
	// mostMatches limits the bytes of status.matchingClusters: etcd accepts 1.5 MiB for the whole object.
	mostMatches = 768 << 10
	// matchSize is the number of bytes of an entry without its names.
	matchSize = 100
)

// matching returns status.matchingClusters for the selected Clusters, and the number of Clusters that do not
// fit.
func matching(clusters []*clusterv1.Cluster) (all []corev1.ObjectReference, left int) {
	size := 0
	for i, cluster := range clusters {
		if size += matchSize + len(cluster.Namespace) + len(cluster.Name); size > mostMatches {
			return all, len(clusters) - i
		}
		all = append(all, corev1.ObjectReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: cluster.Namespace, Name: cluster.Name,
		})
	}
	return all, 0
}

// announce records an event if the status or reason of Ready has changed.
func (r *Reconciler) announce(before, after *addonsv1.HelmChartProxy) {
	was := meta.FindStatusCondition(before.Status.Conditions, addonsv1.ReadyCondition)
	is := meta.FindStatusCondition(after.Status.Conditions, addonsv1.ReadyCondition)
	if was != nil && was.Status == is.Status && was.Reason == is.Reason {
		return
	}
	kind, text := corev1.EventTypeWarning, is.Message
	switch {
	case is.Status == metav1.ConditionTrue:
		kind, text = corev1.EventTypeNormal, "the release is ready on every selected Cluster"
	case is.Reason == addonsv1.HelmReleasePendingReason, is.Reason == addonsv1.HelmReleaseProxySpecsUpdatingReason,
		is.Reason == addonsv1.PreparingToHelmInstallReason:
		return // It is in progress.
	}
	r.Recorder.Eventf(after, nil, kind, is.Reason, "Deploy", "%s", message.Short(text, message.Note))
}

// patchStatus writes the status. If a few of many Clusters come or go, it sends only those: a merge patch would
// send the whole list.
func (r *Reconciler) patchStatus(ctx context.Context, before, after *addonsv1.HelmChartProxy) error {
	if patch := statusPatch(before, after); patch != nil {
		data, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		err = r.Status().Patch(ctx, before.DeepCopy(), client.RawPatch(types.JSONPatchType, data), client.FieldOwner(store.FieldManager))
		if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
			return err
		}
	}
	return r.Status().Patch(ctx, after.DeepCopy(), client.MergeFrom(before), client.FieldOwner(store.FieldManager))
}

// statusPatch returns a JSON patch; nil if a merge patch is as small.
func statusPatch(before, after *addonsv1.HelmChartProxy) []store.Operation {
	const few = 32
	there, wanted := before.Status.MatchingClusters, after.Status.MatchingClusters
	if len(there) < few || len(before.Status.Conditions) == 0 || before.Status.ObservedGeneration == 0 {
		return nil
	}
	changes := store.ListChanges("/status/matchingClusters", there, wanted, func(a, b *corev1.ObjectReference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if len(changes) == 0 {
		return nil
	}
	patch := []store.Operation{{Op: "replace", Path: "/metadata/resourceVersion", Value: before.ResourceVersion}}
	return append(append(patch, changes...),
		store.Operation{Op: "replace", Path: "/status/conditions", Value: after.Status.Conditions},
		store.Operation{Op: "replace", Path: "/status/observedGeneration", Value: after.Status.ObservedGeneration})
}
