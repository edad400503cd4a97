package plan

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/helm/rollout"
)

const (
	// checkInInterval is the interval at which Fleet's agents check in by default.
	checkInInterval     = 15 * time.Minute
	defaultOfflineAfter = 30 * time.Minute
)

// IsStaged reports whether the rollout of a HelmChartProxy decides when its releases take a change over.
func IsStaged(proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.Rollout != nil && !IsInstallOnce(proxy)
}

// OfflineAfter returns how long an agent may be silent before a rollout goes on without its Cluster.
func OfflineAfter(proxy *addonsv1.HelmChartProxy) time.Duration {
	if proxy.Spec.Rollout.OfflineAfter == nil {
		return defaultOfflineAfter
	}
	return proxy.Spec.Rollout.OfflineAfter.Duration
}

// LongestSoak returns the longest soak time of the stages.
func LongestSoak(proxy *addonsv1.HelmChartProxy) (longest time.Duration) {
	if IsStaged(proxy) {
		for _, stage := range proxy.Spec.Rollout.Stages {
			if stage.Soak != nil {
				longest = max(longest, stage.Soak.Duration)
			}
		}
	}
	return longest
}

var rolloutReasons = map[rollout.Reason]string{
	rollout.Completed: addonsv1.RolloutCompletedReason, rollout.Progressing: addonsv1.RolloutProgressingReason, rollout.Soaking: addonsv1.RolloutSoakingReason,
	rollout.WaitingForApproval: addonsv1.RolloutWaitingForApprovalReason, rollout.Halted: addonsv1.RolloutHaltedReason,
}

// RolloutStatus returns status.rollout of a HelmChartProxy, and the condition RolloutCompleted.
func RolloutStatus(proxy *addonsv1.HelmChartProxy, decision *rollout.Decision) (*addonsv1.RolloutStatus, metav1.Condition) {
	status, offline := &addonsv1.RolloutStatus{Approval: decision.Approval}, 0
	names := []string{}
	for _, its := range proxy.Spec.Rollout.Stages {
		names = append(names, its.Name)
	}
	names = append(names, "")
	for i, its := range decision.Counts {
		if names[i] == "" && its.Clusters == 0 {
			continue
		}
		offline += its.Offline
		status.Stages = append(status.Stages, addonsv1.RolloutStageStatus{
			Name: names[i], Clusters: its.Clusters, Updated: its.Updated, Held: its.Held, Failing: its.Failing, Offline: its.Offline,
		})
	}
	isCompleted, message := decision.Reason == rollout.Completed, decision.Message
	if !isCompleted {
		count := decision.Counts[decision.Stage]
		status.Stage = names[decision.Stage]
		name := "stage " + status.Stage
		if status.Stage == "" {
			name = "the Clusters of no stage"
		}
		message = fmt.Sprintf("%s, %d of %d updated: %s", name, count.Updated, count.Clusters, message)
	}
	if offline > 0 {
		message = strings.TrimSpace(fmt.Sprintf("%s (%d offline: %s)", message, offline, decision.Offline))
	}
	return status, condition(addonsv1.RolloutCompletedCondition, isCompleted, rolloutReasons[decision.Reason], message)
}

// validateRollout returns all errors in spec.rollout.
func validateRollout(path *field.Path, strategy *addonsv1.RolloutStrategy) field.ErrorList {
	if strategy == nil {
		return nil
	}
	var errs field.ErrorList
	limit := func(path *field.Path, its *intstr.IntOrString) {
		if its != nil && !percentOrCount.MatchString(its.String()) {
			errs = append(errs, field.Invalid(path, its.String(), "must be a number of at least 1, or a percentage such as 25%"))
		}
	}
	duration := func(path *field.Path, its *metav1.Duration) {
		if its != nil && its.Duration < 0 {
			errs = append(errs, field.Invalid(path, its.Duration.String(), "must not be negative"))
		}
	}
	limit(path.Child("maxUnavailable"), strategy.MaxUnavailable)
	duration(path.Child("offlineAfter"), strategy.OfflineAfter)
	for i := range strategy.Stages {
		stage, path := &strategy.Stages[i], path.Child("stages").Index(i)
		limit(path.Child("maxUnavailable"), stage.MaxUnavailable)
		duration(path.Child("soak"), stage.Soak)
		if (stage.ClusterSelector == nil) == (stage.Percent == nil) {
			errs = append(errs, field.Invalid(path, stage.Name, "must have either clusterSelector or percent"))
		}
		errs = append(errs, bounds.Selector(stage.ClusterSelector, path.Child("clusterSelector"))...)
	}
	return errs
}
