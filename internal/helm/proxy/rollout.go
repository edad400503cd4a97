package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/muster-fleet/muster/internal/stamp"
)

// Knows reports whether a release has rendered its values from what their sources hold now.
type Knows func(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, release *addonsv1.HelmReleaseProxy, cluster *clusterv1.Cluster) bool

// rollOut lets releases take changes over in the order of the stages. It returns the state of the rollout, and the time
// until it has to be looked at without an event; zero for none.
func (r *Reconciler) rollOut(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, now *state) (time.Duration, error) {
	all, offlineAfter := map[plan.Key]*clusterv1.Cluster{}, plan.OfflineAfter(proxy)
	var keys []plan.Key
	for _, cluster := range now.clusters {
		key := client.ObjectKeyFromObject(cluster)
		all[key], keys = cluster, append(keys, key)
	}
	strategy := proxy.Spec.Rollout
	var selections []rollout.Selection
	for i := range strategy.Stages {
		selection, err := selectionOf(&strategy.Stages[i], all)
		if err != nil {
			return 0, err
		}
		selections = append(selections, selection)
	}
	stageOf, sizes, isWaiting := rollout.Assign(selections, keys), make([]int, len(selections)+1), false
	releases := map[plan.Key]*addonsv1.HelmReleaseProxy{}
	for _, release := range now.releases {
		cluster := plan.ClusterOf(release)
		if all[cluster] != nil {
			releases[cluster] = release
			sizes[stageOf[cluster]]++
			its := plan.RecordOf(release).Rollout
			isWaiting = isWaiting || its != nil && its.Pending != ""
		}
	}
	var targets []rollout.Target
	var again time.Duration
	for cluster, release := range releases {
		stage := stageOf[cluster]
		target := r.targetOf(proxy, in, release, all[cluster], soakOf(strategy, stage))
		target.Stage = stage
		if isWaiting && !target.Unknown && !target.Aside { // Its values may have changed with those of the others.
			target.Unknown = !r.Knows(ctx, proxy, in, release, all[cluster])
		}
		if !target.Aside && (target.Pending == "" && target.Ready.IsZero() || target.Pending != "" && target.Granted == target.Pending) {
			seen, err := r.lastSeen(ctx, release)
			if err != nil {
				return 0, err
			}
			silent := r.Now().Sub(seen)
			if target.Offline = silent > offlineAfter; !target.Offline {
				again = soonest(again, max(offlineAfter-silent, askAgain))
			}
		}
		targets = append(targets, target)
	}
	d := rollout.Next(stagesOf(strategy, sizes), targets, proxy.Annotations[addonsv1.RolloutApprovedAnnotation], hashOf, r.Now())
	now.rollout = &d
	var errs []error
	for key, clusters := range map[string][]plan.Key{addonsv1.RolloutApprovedAnnotation: d.Approve, plan.GrantedAnnotation: d.Move} {
		for _, cluster := range clusters {
			errs = append(errs, r.annotate(ctx, releases[cluster], key, plan.RecordOf(releases[cluster]).Rollout.Pending))
		}
	}
	return soonest(again, d.Again), errors.Join(errs...)
}

func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// annotate sets an annotation of a HelmReleaseProxy. The next reconcile follows from the write.
func (r *Reconciler) annotate(ctx context.Context, release *addonsv1.HelmReleaseProxy, key, value string) error {
	want := release.DeepCopy()
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, key, value)
	return client.IgnoreNotFound(r.Change(ctx, release, want))
}

// targetOf returns what the rollout knows of a release.
func (r *Reconciler) targetOf(proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, release *addonsv1.HelmReleaseProxy, cluster *clusterv1.Cluster, soak time.Duration) rollout.Target {
	record, conditions := plan.RecordOf(release), release.Status.Conditions
	target := rollout.Target{
		Cluster: plan.ClusterOf(release), Granted: release.Annotations[plan.GrantedAnnotation], Approved: release.Annotations[addonsv1.RolloutApprovedAnnotation],
		Unknown:   !r.Inputs.HasReported(client.ObjectKeyFromObject(release), in) || record.Rollout == nil,
		Available: meta.IsStatusConditionTrue(conditions, addonsv1.HelmReleaseReadyCondition),
		Aside:     !release.DeletionTimestamp.IsZero() || !record.Installed || capiannotations.IsPaused(cluster, cluster),
	}
	if its := record.Rollout; its != nil {
		target.Pending, target.Failed = its.Pending, its.Failed
		if its.Ready != nil {
			target.Ready = its.Ready.Time
		}
		since, _ := time.Parse(time.RFC3339, proxy.Annotations[addonsv1.RolloutRetryAnnotation])
		target.Regressed = its.Regression != nil && its.Regression.After.Duration < soak && its.Regression.At.After(since)
	}
	if available := meta.FindStatusCondition(conditions, addonsv1.ClusterAvailableCondition); available != nil {
		switch available.Reason {
		case addonsv1.GetClusterFailedReason:
			target.Aside = true
		case addonsv1.ValueParsingFailedReason, addonsv1.HelmReleaseProxyCreationFailedReason:
			target.Blocked = true
		}
	}
	return target
}

// checkIns remembers when each agent was seen last.
type checkIns struct {
	mu  sync.Mutex
	all map[plan.Key]checkIn
}

type checkIn struct{ asked, seen time.Time }

// askAgain is how often the program asks when the agent of a Cluster was seen last that a rollout waits for.
const askAgain = time.Minute

// lastSeen returns when the agent of a release was seen last. Check-ins trigger no event: the cache has only the metadata
// of Fleet Clusters.
func (r *Reconciler) lastSeen(ctx context.Context, release *addonsv1.HelmReleaseProxy) (time.Time, error) {
	key := plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: plan.RecordOf(release).FleetCluster}
	r.checkIns.mu.Lock()
	its, now := r.checkIns.all[key], r.Now()
	r.checkIns.mu.Unlock()
	if now.Sub(its.asked) < askAgain {
		return its.seen, nil
	}
	fleet := &fleetv1.Cluster{}
	if err := r.Live.Get(ctx, key, fleet); err != nil && !apierrors.IsNotFound(err) {
		return now, fmt.Errorf("reading Fleet Cluster %s: %w", key, err)
	}
	seen := fleet.Status.Agent.LastSeen.Time
	if seen.IsZero() { // Its release is installed, so the agent was there; Fleet has not noted yet when.
		return now, nil
	}
	r.checkIns.mu.Lock()
	defer r.checkIns.mu.Unlock()
	if len(r.checkIns.all) >= mostCheckIns || r.checkIns.all == nil {
		r.checkIns.all = map[plan.Key]checkIn{}
	}
	r.checkIns.all[key] = checkIn{asked: now, seen: seen}
	return seen, nil
}

// mostCheckIns bounds the memory for Clusters that a rollout no longer waits for.
const mostCheckIns = 1000

func hashOf(parts []string) string { return plan.Digest([]byte(plan.JSON(parts))) }

func selectionOf(stage *addonsv1.RolloutStage, clusters map[plan.Key]*clusterv1.Cluster) (rollout.Selection, error) {
	if stage.ClusterSelector == nil {
		return rollout.Selection{Percent: int(ptr.Deref(stage.Percent, 0))}, nil
	}
	selector, err := bounds.AsSelector(stage.ClusterSelector)
	if err != nil {
		return rollout.Selection{}, fmt.Errorf("spec.rollout.stages, %s: %w", stage.Name, err)
	}
	return rollout.Selection{Matches: func(key plan.Key) bool {
		cluster := clusters[key]
		return selector.Matches(labels.Set(stamp.WithClassLabels(cluster.Labels, cluster.GetClassKey())))
	}}, nil
}

func soakOf(strategy *addonsv1.RolloutStrategy, stage int) time.Duration {
	if stage < len(strategy.Stages) && strategy.Stages[stage].Soak != nil {
		return strategy.Stages[stage].Soak.Duration
	}
	return 0
}

// stagesOf returns the stages, and last the one of the Clusters that none of them selects.
func stagesOf(strategy *addonsv1.RolloutStrategy, sizes []int) []rollout.Stage {
	var stages []rollout.Stage
	for i, its := range append(strategy.Stages[:len(strategy.Stages):len(strategy.Stages)], addonsv1.RolloutStage{}) {
		stage := rollout.Stage{
			Name: its.Name, Soak: soakOf(strategy, i), Manual: its.Approval == addonsv1.RolloutApprovalManual,
			MaxFailing: int(ptr.Deref(its.MaxFailing, 0)), MaxUnavailable: sizes[i],
		}
		limit := its.MaxUnavailable
		if limit == nil {
			limit = strategy.MaxUnavailable
		}
		if limit != nil {
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
