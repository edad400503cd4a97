package proxy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/rollout"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
)

// rolling is a rollout while it is decided.
type rolling struct {
	proxy *addonsv1.HelmChartProxy
	in    *inputs.Inputs
	// clusters are those that take part: one that is being deleted does not.
	clusters map[plan.Key]*clusterv1.Cluster
	releases map[plan.Key]*addonsv1.HelmReleaseProxy
	stageOf  map[plan.Key]int
	targets  []rollout.Target
	stages   []rollout.Stage
	// isBack is plan.IsBack of the HelmChartProxy.
	isBack bool
	// again is the time until an agent may count as silent; zero if the rollout waits for no agent.
	again time.Duration
}

// rollOut lets releases take changes over in the order of the stages. It returns the time until it has to decide again
// without an event; zero for none.
func (r *Reconciler) rollOut(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, now *state) (time.Duration, error) {
	its := newRolling(proxy, in, now)
	for cluster := range its.releases {
		if err := cmp.Or(r.putBack(ctx, its, cluster), r.addTarget(ctx, its, cluster)); err != nil {
			return 0, err
		}
	}
	for cluster, stage := range its.stageOf {
		if its.releases[cluster] == nil {
			its.targets = append(its.targets, rollout.Target{Cluster: cluster, Stage: stage, Aside: notInstalled})
		}
	}
	next := func() rollout.Decision {
		return rollout.Next(its.stages, its.targets, proxy.Annotations[addonsv1.RolloutApprovedAnnotation], its.hashOf, r.Now())
	}
	d := next()
	if len(d.Move)+len(d.Approve) > 0 { // The values of Clusters before may have changed together with these.
		for i := range its.targets {
			if target := &its.targets[i]; target.Stage <= d.Stage && !target.Unknown && !target.Blocked && target.Aside == "" {
				target.Unknown = !r.Knows(ctx, proxy, in, its.releases[target.Cluster], its.clusters[target.Cluster])
			}
		}
		d = next()
	}
	failing := its.failing(d)
	d.Retry = its.retryOf(failing)
	now.rollout = &d
	if d.Retry != "" && d.Retry == proxy.Annotations[addonsv1.RolloutRetryAnnotation] {
		return 0, r.excuse(ctx, its, failing)
	}
	return kube.Sooner(its.again, d.Again), r.grant(ctx, its, d)
}

func newRolling(proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, now *state) *rolling {
	its := &rolling{proxy: proxy, in: in, isBack: plan.IsBack(proxy), clusters: map[plan.Key]*clusterv1.Cluster{}, releases: map[plan.Key]*addonsv1.HelmReleaseProxy{}}
	var keys []plan.Key
	for _, cluster := range now.clusters {
		if cluster.DeletionTimestamp.IsZero() { // Others, such as tenants, decide how long the deletion takes.
			key := client.ObjectKeyFromObject(cluster)
			its.clusters[key], keys = cluster, append(keys, key)
		}
	}
	strategy := proxy.Spec.Rollout
	var selections []rollout.Selection
	for i := range strategy.Stages {
		selections = append(selections, selectionOf(&strategy.Stages[i], its.clusters))
	}
	its.stageOf = rollout.Assign(selections, keys)
	sizes := make([]int, len(selections)+1)
	for _, release := range now.releases {
		if cluster := plan.ClusterOf(release); its.clusters[cluster] != nil {
			its.releases[cluster] = release
			sizes[its.stageOf[cluster]]++
		}
	}
	its.stages = stagesOf(strategy, sizes)
	return its
}

// putBack writes times in the record of a release that are after now back as now.
func (r *Reconciler) putBack(ctx context.Context, its *rolling, cluster plan.Key) error {
	release := its.releases[cluster]
	record := plan.RecordOf(release)
	was := record.Rollout
	if was == nil {
		return nil
	}
	if record.Rollout = was.PutBack(its.proxy, r.Now()); *record.Rollout == *was {
		return nil
	}
	want := release.DeepCopy()
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, plan.RecordAnnotation, record.String())
	its.releases[cluster] = want
	return client.IgnoreNotFound(r.Change(ctx, release, want, store.Unchanged))
}

// addTarget adds the observed state of a release. It asks about the agent only if the rollout waits for it.
func (r *Reconciler) addTarget(ctx context.Context, its *rolling, cluster plan.Key) error {
	release, stage := its.releases[cluster], its.stageOf[cluster]
	target := r.targetOf(its, release, its.clusters[cluster], its.stages[stage].Soak)
	target.Stage = stage
	if target.IsMoving() && target.Aside == "" {
		seen, err := r.LastSeen(ctx, plan.Key{Namespace: cluster.Namespace, Name: plan.RecordOf(release).FleetCluster})
		if err != nil {
			return err
		}
		if seen.IsZero() { // Its release is installed, so the agent was there; Fleet has not noted yet when.
			seen = r.Now()
		}
		offlineAfter := plan.OfflineAfter(its.proxy)
		switch silent := r.Now().Sub(seen); {
		case silent <= offlineAfter:
			its.again = kube.Sooner(its.again, max(offlineAfter-silent, store.TrustInterval))
		case isSilenced(release, seen.Add(offlineAfter)):
			target.Failed, target.Failure = true, plan.RecordOf(release).Failure()
		default:
			target.Offline = true
		}
	}
	if r.IsPast(release) && target.Aside == "" { // It may have been granted just now, or not: it moves, and is waited for.
		target.Granted = target.Pending
	}
	its.targets = append(its.targets, target)
	return nil
}

// failing returns what halts a rollout, and a person may excuse, sorted.
func (its *rolling) failing(d rollout.Decision) []rollout.Target {
	if d.Reason != rollout.Halted {
		return nil
	}
	failing := slices.DeleteFunc(slices.Clone(its.targets), func(t rollout.Target) bool { return t.Aside != "" || t.Failure == "" })
	slices.SortFunc(failing, func(a, b rollout.Target) int { return cmp.Compare(a.Cluster.String(), b.Cluster.String()) })
	return failing
}

// retryOf returns the hash of failures; empty if there are none.
func (its *rolling) retryOf(failing []rollout.Target) string {
	if len(failing) == 0 {
		return ""
	}
	var parts []string
	for _, target := range failing {
		parts = append(parts, target.Cluster.String(), target.Failure)
	}
	return its.hashOf(parts)
}

// excuse notes on each release that a person has excused its failure. So it stays excused when others fail.
func (r *Reconciler) excuse(ctx context.Context, its *rolling, failing []rollout.Target) error {
	var errs []error
	for _, target := range failing {
		errs = append(errs, r.annotate(ctx, its.releases[target.Cluster], addonsv1.RolloutRetryAnnotation, target.Failure))
	}
	return errors.Join(errs...)
}

// grant writes a decision down.
func (r *Reconciler) grant(ctx context.Context, its *rolling, d rollout.Decision) error {
	var errs []error
	for _, target := range its.targets { // What was granted before a pause may be wrong after it.
		if target.Aside != "" && target.Granted != "" && target.Granted == target.Pending {
			errs = append(errs, r.annotate(ctx, its.releases[target.Cluster], plan.GrantedAnnotation, ""))
		}
	}
	for key, clusters := range map[string][]plan.Key{addonsv1.RolloutApprovedAnnotation: d.Approve, plan.GrantedAnnotation: d.Move} {
		for _, cluster := range clusters {
			errs = append(errs, r.annotate(ctx, its.releases[cluster], key, plan.RecordOf(its.releases[cluster]).Rollout.Pending))
		}
	}
	return errors.Join(errs...)
}

// annotate sets an annotation of a HelmReleaseProxy. The next reconcile follows from the write.
func (r *Reconciler) annotate(ctx context.Context, release *addonsv1.HelmReleaseProxy, key, value string) error {
	want := release.DeepCopy()
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, key, value)
	return client.IgnoreNotFound(r.Change(ctx, release, want))
}

// isSilenced reports whether an agent went silent after its release took a change over, so that the change may be why. An
// agent is silent from a time on, and was there when that is later than the change; people may say that it was not.
func isSilenced(release *addonsv1.HelmReleaseProxy, from time.Time) bool {
	record := plan.RecordOf(release)
	its := record.Rollout
	return its != nil && its.Pending == "" && its.Since != nil && from.After(its.Since.Time) && !isExcused(release, record)
}

// isExcused reports whether a person has excused the failure of a release.
func isExcused(release *addonsv1.HelmReleaseProxy, record plan.Record) bool {
	return release.Annotations[addonsv1.RolloutRetryAnnotation] == record.Failure()
}

// targetOf returns what the rollout knows of a release.
func (r *Reconciler) targetOf(of *rolling, release *addonsv1.HelmReleaseProxy, cluster *clusterv1.Cluster, soak time.Duration) rollout.Target {
	record, conditions := plan.RecordOf(release), release.Status.Conditions
	target := rollout.Target{
		Cluster: plan.ClusterOf(release), Granted: release.Annotations[plan.GrantedAnnotation], Approved: release.Annotations[addonsv1.RolloutApprovedAnnotation],
		Unknown:   !r.Inputs.HasReported(release, of.in) || record.Rollout == nil,
		Available: meta.IsStatusConditionTrue(conditions, addonsv1.HelmReleaseReadyCondition),
		Aside:     asideOf(release, cluster, record.Installed),
	}
	if its := record.Rollout; its != nil {
		target.Pending, target.Failed = its.Pending, its.Failed
		target.Available = target.Available && its.Works() // Without wait, the condition follows Helm, not the workloads.
		target.Returns = its.Returns(of.proxy, of.isBack)
		if at := its.TookOver(); at != nil {
			target.Since = at.Time
		}
		if its.Ready != nil && its.Unready == nil {
			target.Ready = its.Ready.Time
			if soak > 0 { // The record has whole seconds, rounded down.
				target.Ready = target.Ready.Add(time.Second)
			}
		}
		target.Regressed = its.Regression != nil && its.Regression.After.Duration < soak && !isExcused(release, record)
		if target.Regressed && its.Pending == "" {
			target.Failure = record.Failure()
		}
	}
	switch ptr.Deref(meta.FindStatusCondition(conditions, addonsv1.ClusterAvailableCondition), metav1.Condition{}).Reason {
	case addonsv1.ValueParsingFailedReason, addonsv1.HelmReleaseProxyCreationFailedReason, addonsv1.PolicyRefusesReason:
		target.Blocked = true
	}
	return target
}

// asideOf says why a release does not take part in a rollout; empty if it does.
func asideOf(release *addonsv1.HelmReleaseProxy, cluster *clusterv1.Cluster, isInstalled bool) string {
	available := meta.FindStatusCondition(release.Status.Conditions, addonsv1.ClusterAvailableCondition)
	switch {
	case capiannotations.IsPaused(cluster, cluster):
		return "paused"
	case !release.DeletionTimestamp.IsZero():
		return "being uninstalled"
	case available != nil && available.Reason == addonsv1.GetClusterFailedReason:
		return "not in Fleet"
	case !isInstalled:
		return notInstalled
	default:
		return ""
	}
}

const notInstalled = "not installed yet"

// hashOf makes the hash that a person approves. It is another one once a rollout was completed: the annotation stays, and
// must not count if the same change comes back.
func (its *rolling) hashOf(parts []string) string {
	if last := plan.Completed(its.proxy); last != nil {
		parts = append(parts, last.Time.UTC().Format(time.RFC3339))
	}
	return plan.Digest([]byte(plan.JSON(parts)))
}

func selectionOf(stage *addonsv1.RolloutStage, clusters map[plan.Key]*clusterv1.Cluster) rollout.Selection {
	if stage.ClusterSelector == nil {
		return rollout.Selection{Percent: int(ptr.Deref(stage.Percent, 0))}
	}
	selector, err := bounds.AsSelector(stage.ClusterSelector)
	return rollout.Selection{Matches: func(key plan.Key) bool { // With a selector that cannot be used, the inputs are incomplete.
		cluster := clusters[key]
		return err == nil && selector.Matches(labels.Set(stamp.WithClassLabels(cluster.Labels, cluster.GetClassKey())))
	}}
}

// stagesOf returns the stages, and last the one of the Clusters that none of them selects.
func stagesOf(strategy *addonsv1.RolloutStrategy, sizes []int) []rollout.Stage {
	var stages []rollout.Stage
	for i, its := range append(slices.Clip(strategy.Stages), addonsv1.RolloutStage{}) {
		stage := rollout.Stage{
			Name: its.Name, Soak: ptr.Deref(its.Soak, metav1.Duration{}).Duration, Manual: its.Approval == addonsv1.RolloutApprovalManual,
			MaxFailing: int(ptr.Deref(its.MaxFailing, 0)), MaxUnavailable: sizes[i],
		}
		if limit := cmp.Or(its.MaxUnavailable, strategy.MaxUnavailable); limit != nil {
			if most, err := intstr.GetScaledValueFromIntOrPercent(limit, sizes[i], true); err == nil { // Validate has checked it.
				stage.MaxUnavailable = most
			}
		}
		stage.MaxUnavailable = max(1, stage.MaxUnavailable)
		if len(strategy.Stages) == 0 { // maxUnavailable bounds what a failing change reaches.
			stage.MaxFailing = sizes[i]
		}
		stages = append(stages, stage)
	}
	return stages
}
