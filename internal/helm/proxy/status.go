package proxy

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/rollout"
	"github.com/muster-fleet/muster/internal/message"
)

// state is the input for the status of a HelmChartProxy.
type state struct {
	// trouble concerns all releases. It is reported before some, which concerns only some of them.
	trouble, some plan.Trouble
	notice        string
	// clusters are the selected ones; nil if they are not known.
	clusters []*clusterv1.Cluster
	releases []*addonsv1.HelmReleaseProxy
	// rollout is the state of the rollout; nil without one, or if it is not known.
	rollout *rollout.Decision
	// version is the exact version of the chart.
	version string
}

// fail notes the first trouble of some releases.
func (s *state) fail(reason, message string) {
	s.some = cmp.Or(s.some, plan.Trouble{Reason: reason, Message: message})
}

// report writes the status of a HelmChartProxy if it differs, and an event if Ready changes. What people see is not written
// for each of a thousand Clusters.
func (r *Reconciler) report(ctx context.Context, before *addonsv1.HelmChartProxy, now state) (ctrl.Result, error) {
	after := before.DeepCopy()
	status := &after.Status
	conditions := plan.ProxyConditions(cmp.Or(now.trouble, now.some), now.notice, now.releases)
	if now.clusters != nil {
		status.Display = plan.Display(cmp.Or(now.version, status.Display.Version), len(now.clusters), now.releases)
		var left int
		if status.MatchingClusters, left = matching(now.clusters); left > 0 && conditions[1].Message == "" {
			conditions[1].Message = fmt.Sprintf("status.matchingClusters has no room for %d more", left)
		}
	}
	if status.MatchingClusters == nil { // The CRD requires the field.
		status.MatchingClusters = []corev1.ObjectReference{}
	}
	switch {
	case now.rollout != nil:
		var completed metav1.Condition
		status.Rollout, completed = plan.RolloutStatus(before, now.version, now.rollout, r.Now())
		conditions = append(conditions, completed)
	case !plan.IsStaged(before):
		status.Rollout = nil
		meta.RemoveStatusCondition(&status.Conditions, addonsv1.RolloutCompletedCondition)
	}
	SetConditions(&status.Conditions, before.Generation, conditions, r.Now())
	meta.RemoveStatusCondition(&status.Conditions, addonsv1.NotManagedCondition)
	status.ObservedGeneration = before.Generation
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return ctrl.Result{}, nil
	}
	key, seen := client.ObjectKeyFromObject(after), before.Status
	seen.Display = status.Display
	if wait := r.UntilDisplay(key); wait > 0 && equality.Semantic.DeepEqual(seen, after.Status) {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if err := r.SetStatus(ctx, before, after); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.reported.Store(key, versions(before, after))
	announce(r.Recorder, before, after)
	return ctrl.Result{}, nil
}

// SetConditions sets conditions. It shortens and cleans the messages: Fleet and Helm do not limit them, and
// they may contain text from other users.
func SetConditions(conditions *[]metav1.Condition, generation int64, wanted []metav1.Condition, now time.Time) {
	for _, condition := range wanted {
		condition.Message = message.Short(message.Text(condition.Message), message.Condition)
		condition.ObservedGeneration = generation
		condition.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
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

// announce records events if the status or reason of Ready has changed, or the stage or reason of a rollout.
func announce(recorder events.EventRecorder, before, after *addonsv1.HelmChartProxy) {
	announceRollout(recorder, before, after)
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
		is.Reason == addonsv1.PreparingToHelmInstallReason, is.Reason == addonsv1.ReadingInputsReason:
		return // It is in progress.
	}
	recorder.Eventf(after, nil, kind, is.Reason, "Deploy", "%s", message.Short(text, message.Note))
}

func announceRollout(recorder events.EventRecorder, before, after *addonsv1.HelmChartProxy) {
	is := meta.FindStatusCondition(after.Status.Conditions, addonsv1.RolloutCompletedCondition)
	was := meta.FindStatusCondition(before.Status.Conditions, addonsv1.RolloutCompletedCondition)
	if is == nil || was == nil || was.Reason == is.Reason && (is.Status == metav1.ConditionTrue || before.Status.Rollout != nil && before.Status.Rollout.Stage == after.Status.Rollout.Stage) {
		return
	}
	kind, text := corev1.EventTypeNormal, cmp.Or(is.Message, "every Cluster has the wanted state")
	switch {
	case is.Reason == addonsv1.RolloutHaltedReason:
		kind, text = corev1.EventTypeWarning, is.Message
	case is.Status != metav1.ConditionTrue:
		text = is.Message
	}
	recorder.Eventf(after, nil, kind, "Rollout"+is.Reason, "RollOut", "%s", message.Short(text, message.Note))
}
