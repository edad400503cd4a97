package release

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// In a rollout, an installed release gets a change of its content or its values only when its HelmReleaseProxy has
// the hash of exactly that change as GrantedAnnotation. Until then, it keeps its values: agents copy changed
// values at once, whatever Fleet's rollout strategy says (seen on Fleet 0.16).

// joinRollout begins the record of rollouts for a release, or ends it. Until a release is installed, it has what its
// Bundle has.
func (s *scope) joinRollout(now time.Time) {
	content := s.bundle.Labels[plan.ContentLabel]
	switch its := s.record.Rollout; {
	case !plan.IsStaged(s.proxy):
		s.record.Rollout = nil
	case its == nil && s.record.Installed:
		s.record.Rollout = &plan.Rollout{Content: content}
	case !s.record.Installed:
		// A release that joined ahead has yet to go back if the HelmChartProxy has, and the Bundle has not.
		isAhead := plan.IsAhead(s.proxy) || its != nil && its.Ahead && its.Content == content && content != s.content()
		version := plan.JoinVersion(s.proxy, s.inputs.Chart)
		if its == nil || its.Content != content || its.Version != version || its.Ahead != isAhead {
			joined := metav1.NewTime(now).Rfc3339Copy()
			s.record.Rollout = &plan.Rollout{Content: content, Version: version, Joined: &joined, Ahead: isAhead}
		}
	}
}

// hasContent reports whether the release has the wanted content, as far as it matters for its values.
func (s *scope) hasContent() bool {
	its := s.record.Rollout
	return its == nil || !s.record.Installed || its.Content == s.content() && its.Version == ""
}

// isHeld reports whether the release has to wait for its turn with these values, and notes that in the record.
func (r *Reconciler) isHeld(ctx context.Context, s *scope, digest string) bool {
	if s.record.Rollout == nil || !s.record.Installed {
		return false
	}
	its := *s.record.Rollout
	its.Pending, its.Values = "", digest != s.record.Digest
	if digest != s.record.Digest || !s.hasContent() {
		its.Pending = plan.Change(s.content(), digest)
	}
	s.record.Rollout = &its
	if its.Pending == "" || s.release.Annotations[plan.GrantedAnnotation] == its.Pending {
		return false
	}
	if r.isLost(ctx, s) {
		return false
	}
	s.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, "the release waits for its turn in the rollout")
	return true
}

// isLost reports whether the values or the BundleDeployment of the release were deleted. Fleet works on no target of a
// Bundle while one names values that do not exist, and the old ones cannot be rendered any more.
func (r *Reconciler) isLost(ctx context.Context, s *scope) bool {
	// The values are deleted with an earlier Bundle, or Fleet creates no BundleDeployment for a held target.
	isElsewhere := s.record.Digest != "" && s.record.Bundle != s.bundle.UID
	if isElsewhere || s.deployment == nil && s.record.Rollout.Content != s.bundle.Labels[plan.ContentLabel] {
		return true
	}
	if s.record.Digest == "" {
		return false
	}
	if s.record.Secret { // The program gets no events for Secrets.
		s.retryAfter(checkInterval)
	}
	found, err := r.HasValues(ctx, s.key(s.record), s.record.Secret)
	switch {
	case err != nil: // It must not count as a failure of the change, and halt the rollout.
		ctrl.LoggerFrom(ctx).Error(err, "The release stays held")
	case !found:
		r.Recorder.Eventf(s.proxy, nil, corev1.EventTypeWarning, "ValuesLost", "Deploy", "Cluster %s gets the change before its turn: somebody has deleted the values that it had, %s %s",
			s.release.Spec.ClusterRef.Name, plan.KindOfValues(s.record.Secret), s.key(s.record))
	}
	return err == nil && !found
}

// takeOver records that the release has the wanted content with the values that were just written.
func (s *scope) takeOver(now time.Time) {
	its := s.record.Rollout
	if its == nil || !s.record.Installed || its.Pending == "" {
		return
	}
	since := metav1.NewTime(now).Rfc3339Copy()
	next := &plan.Rollout{Content: s.content(), Completed: its.Completed, Since: &since}
	if its.IsCompleted(s.proxy) {
		next.Completed = plan.Change(its.Content, plan.RecordOf(s.release).Digest)
	} else if its.Ahead {
		next.Ahead = plan.IsAhead(s.proxy)
	}
	if next.IsCompleted(s.proxy) { // Times have seconds, and this change came after.
		since = *plan.AfterCompleted(s.proxy)
	}
	s.record.Rollout = next
}

// Knows reports whether the release has rendered its values from the current state of its sources.
func (r *Reconciler) Knows(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, release *addonsv1.HelmReleaseProxy, cluster *clusterv1.Cluster) bool {
	current, err := settingsOf(ctx, r.Settings, of)
	if err != nil || current == nil {
		return false
	}
	s := &scope{proxy: of, release: release, inputs: in, cluster: cluster, settings: current}
	from := s.digestOfSources(ctx, r.Sources)
	last, its := r.last(s), plan.RecordOf(release).Rollout
	return from != 0 && last.from == from && (!last.isHeld || its != nil && its.Pending != "") // The cache may lack the record.
}
