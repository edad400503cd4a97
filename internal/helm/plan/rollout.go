package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/rollout"
)

const (
	// CheckInInterval is the interval at which Fleet's agents check in by default.
	CheckInInterval     = 15 * time.Minute
	defaultOfflineAfter = 30 * time.Minute
)

// IsStaged reports whether the rollout of a HelmChartProxy decides when its releases get a change.
func IsStaged(proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.Rollout != nil && !IsInstallOnce(proxy)
}

// OfflineAfter returns how long an agent may be silent before a rollout continues without its Cluster.
func OfflineAfter(proxy *addonsv1.HelmChartProxy) time.Duration {
	return ptr.Deref(proxy.Spec.Rollout.OfflineAfter, metav1.Duration{Duration: defaultOfflineAfter}).Duration
}

// LongestSoak returns the longest soak time of the stages.
func LongestSoak(proxy *addonsv1.HelmChartProxy) (longest time.Duration) {
	if IsStaged(proxy) {
		for _, stage := range proxy.Spec.Rollout.Stages {
			longest = max(longest, ptr.Deref(stage.Soak, metav1.Duration{}).Duration)
		}
	}
	return longest
}

// Change returns the hash of a content and a digest of values. A release waits for exactly this change.
func Change(content, digest string) string { return Digest([]byte(content + " " + digest)) }

// Completed returns the last completed rollout of a HelmChartProxy; nil if none is known.
func Completed(proxy *addonsv1.HelmChartProxy) *addonsv1.CompletedRollout {
	if proxy.Status.Rollout == nil {
		return nil
	}
	return proxy.Status.Rollout.LastCompleted
}

// AfterCompleted returns a time after the last completed rollout of a HelmChartProxy: times have whole seconds. It is nil if
// none is known.
func AfterCompleted(proxy *addonsv1.HelmChartProxy) *metav1.Time {
	if last := Completed(proxy); last != nil {
		return later(last.Time.Time, time.Second)
	}
	return nil
}

// LastCompleted returns the spec of a HelmChartProxy with which its rollout was last completed, but with its
// current selectors and stages. It reports false if that spec is unknown.
func LastCompleted(proxy *addonsv1.HelmChartProxy) (addonsv1.HelmChartProxySpec, bool) {
	var spec addonsv1.HelmChartProxySpec
	if its := Completed(proxy); its == nil || json.Unmarshal(its.Spec.Raw, &spec) != nil {
		return spec, false
	}
	spec.ClusterSelector, spec.NamespaceSelector, spec.Rollout = proxy.Spec.ClusterSelector, proxy.Spec.NamespaceSelector, proxy.Spec.Rollout
	return spec, true
}

// IsBack reports whether a HelmChartProxy has the spec with which its rollout was last completed.
func IsBack(proxy *addonsv1.HelmChartProxy) bool {
	last, isKnown := LastCompleted(proxy)
	was, is := &addonsv1.HelmChartProxy{Spec: last}, proxy.DeepCopy()
	Default(was)
	Default(is)
	return isKnown && equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

// IsAhead reports whether a HelmChartProxy has another spec than that.
func IsAhead(proxy *addonsv1.HelmChartProxy) bool { return Completed(proxy) != nil && !IsBack(proxy) }

// TookOver returns when the release got its current state; nil if it has had that state since before spec.rollout
// was set.
func (r Rollout) TookOver() *metav1.Time { return cmp.Or(r.Since, r.Joined) }

// Works reports whether the release may work with its current state: it has been ready with that state, or got it outside a
// rollout and has not been observed since. A release that waits for its turn is not observed.
func (r Rollout) Works() bool {
	if r.Ready == nil {
		return r.Since == nil && r.Regression == nil
	}
	return r.Unready == nil
}

// IsCompleted reports whether a rollout was completed since the release has its current state.
func (r Rollout) IsCompleted(proxy *addonsv1.HelmChartProxy) bool {
	since, last := r.TookOver(), Completed(proxy)
	return since == nil || last != nil && !last.Time.Before(since)
}

// Returns reports whether the change that the release waits for is the state that it had when the rollout was last
// completed. A release that joined ahead of that rollout had no such state, and returns with the others if isBack.
func (r Rollout) Returns(proxy *addonsv1.HelmChartProxy, isBack bool) bool {
	return r.Pending != "" && Completed(proxy) != nil && !r.IsCompleted(proxy) && (r.Pending == r.Completed || isBack && r.Ahead)
}

// JoinVersion returns the version of the chart for a Cluster that joins during a rollout: the last completed one
// if the new one has not passed a stage. It is empty for the version of the Bundle. Only agents that download the
// chart can have another version.
func JoinVersion(proxy *addonsv1.HelmChartProxy, chart Chart) string {
	last, isKnown := LastCompleted(proxy)
	completed := meta.FindStatusCondition(proxy.Status.Conditions, addonsv1.RolloutCompletedCondition)
	if !isKnown || !chart.Agent || last.RepoURL != proxy.Spec.RepoURL || last.ChartName != proxy.Spec.ChartName || completed == nil {
		return ""
	}
	if completed.ObservedGeneration == proxy.Generation { // Otherwise the change is newer than the status, and has passed no stage.
		its := proxy.Status.Rollout
		current := slices.IndexFunc(its.Stages, func(stage addonsv1.RolloutStageStatus) bool { return stage.Name == its.Stage })
		isProven := func(stage addonsv1.RolloutStageStatus) bool { return stage.Updated > 0 } // All its Clusters may stand aside.
		if completed.Status == metav1.ConditionTrue || slices.ContainsFunc(its.Stages[:max(current, 0)], isProven) {
			return ""
		}
	}
	if last := Completed(proxy).Version; last != chart.Version {
		return last
	}
	return ""
}

// mostSpec bounds status.rollout.lastCompleted.spec: etcd accepts 1.5 MiB for the whole object.
const mostSpec = 256 << 10

// completed returns status.rollout.lastCompleted of a HelmChartProxy whose rollout is complete. Since is when a
// release last got a new state: the rollout was completed later than that, whatever the clocks say. See PutBack.
func completed(proxy *addonsv1.HelmChartProxy, version string, since, now time.Time) *addonsv1.CompletedRollout {
	was := meta.FindStatusCondition(proxy.Status.Conditions, addonsv1.RolloutCompletedCondition)
	if since.After(now) {
		now = since
	}
	if last := Completed(proxy); last != nil && !last.Time.Time.Before(since) && was != nil && was.Status == metav1.ConditionTrue && was.ObservedGeneration == proxy.Generation {
		if last.Time.After(now) { // The clock was ahead.
			last = last.DeepCopy()
			last.Time = *later(now, 0)
		}
		return last
	}
	spec := proxy.Spec
	spec.ClusterSelector, spec.NamespaceSelector, spec.Rollout = metav1.LabelSelector{}, nil, nil
	result := &addonsv1.CompletedRollout{Time: *later(now, 0), Version: version, Spec: runtime.RawExtension{Raw: []byte(JSON(spec))}}
	if len(result.Spec.Raw) > mostSpec {
		result.Spec.Raw = nil
	}
	return result
}

// RolloutStatus returns status.rollout of a HelmChartProxy whose chart has this version, and the condition RolloutCompleted.
func RolloutStatus(proxy *addonsv1.HelmChartProxy, version string, decision *rollout.Decision, now time.Time) (*addonsv1.RolloutStatus, metav1.Condition) {
	status, updated := &addonsv1.RolloutStatus{Approval: decision.Approval, Retry: decision.Retry}, 0
	for _, its := range decision.Counts {
		if its.Name == "" && its.Clusters == 0 {
			continue
		}
		updated += its.Updated
		status.Stages = append(status.Stages, its)
	}
	isCompleted, message := decision.Reason == rollout.Completed, decision.Message
	status.LastCompleted = Completed(proxy)
	if isCompleted && (updated > 0 || status.LastCompleted == nil) { // Else, no Cluster has shown that the change works: all are paused, or there is none.
		status.LastCompleted = completed(proxy, version, decision.Since, now)
	}
	switch {
	case isCompleted && decision.Without != "":
		message = "every other Cluster has the wanted state"
	case !isCompleted:
		count := decision.Counts[decision.Stage]
		status.Stage = count.Name
		name := "stage " + status.Stage
		if status.Stage == "" {
			name = "the Clusters of no stage"
		}
		message = fmt.Sprintf("%s, %d of %d updated: %s", name, count.Updated, count.Clusters, message)
	}
	if decision.Without != "" {
		message += " (" + decision.Without + ")"
	}
	return status, condition(addonsv1.RolloutCompletedCondition, isCompleted, decision.Reason, message)
}
