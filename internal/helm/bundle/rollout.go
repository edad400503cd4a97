package bundle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// isHeld reports whether a Bundle keeps its content, because the rollout does not allow any of its releases to get
// the new one yet. A Bundle without installed releases is not held.
func (s *scope) isHeld(content string) bool {
	if !plan.IsStaged(s.of) {
		return false
	}
	isInstalled := func(its *addonsv1.HelmReleaseProxy) bool { return plan.RecordOf(its).Installed }
	mayMove := func(its *addonsv1.HelmReleaseProxy) bool { return isInstalled(its) && !plan.Holds(its, content) }
	return slices.ContainsFunc(s.releases, isInstalled) && !slices.ContainsFunc(s.releases, mayMove)
}

// strategy returns the rollout strategy of a Bundle that has a content. It holds releases that wait for another content,
// and targets without a release.
func (s *scope) strategy(targets []fleetv1.BundleTarget, content string) *fleetv1.RolloutStrategy {
	if !plan.IsStaged(s.of) {
		return nil
	}
	isFree := map[string]bool{}
	for _, release := range s.releases { // Several HelmReleaseProxies may name one Fleet Cluster: some may be forged.
		its := plan.RecordOf(release).FleetCluster
		was, isKnown := isFree[its]
		isFree[its] = (was || !isKnown) && !plan.Holds(release, content)
	}
	return plan.StrategyFor(targets, func(fleetCluster string) bool { return !isFree[fleetCluster] })
}

// keepContents keeps the Contents that BundleDeployments name. Fleet counts references only to the newest Content,
// by a label on BundleDeployments, and deletes the others (seen on Fleet 0.16). So for each Content, a
// BundleDeployment that deploys nothing, in a namespace that no agent reads, keeps it. It has to exist before the
// Bundle changes.
func (r *Reconciler) keepContents(ctx context.Context, s *scope, strategy *fleetv1.RolloutStrategy) error {
	var all fleetv1.BundleDeploymentList
	if err := r.List(ctx, &all, client.InNamespace(s.key.Namespace), client.MatchingLabels{plan.KeepsLabel: s.key.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing BundleDeployments: %w", err)
	}
	if strategy == nil && len(all.Items) == 0 {
		return nil
	}
	isListed, named := map[string]bool{}, map[string]bool{}
	if strategy != nil {
		for _, its := range strategy.Partitions {
			isListed[its.ClusterName] = true
		}
	}
	for _, target := range s.have.Spec.Targets {
		deployment, err := r.Deployment(ctx, s.key, target.ClusterName)
		if err != nil {
			return err
		}
		if content := contentOf(deployment); content != "" && (strategy != nil && !isListed[target.ClusterName] || content != deployment.Labels[fleetv1.ContentNameLabel]) {
			named[content] = true
		}
	}
	var errs []error
	for i := range all.Items {
		if its := &all.Items[i]; named[its.Labels[fleetv1.ContentNameLabel]] {
			delete(named, its.Labels[fleetv1.ContentNameLabel])
		} else {
			errs = append(errs, r.Remove(ctx, its))
		}
	}
	for content := range named {
		keeper := plan.Keeper(client.ObjectKeyFromObject(s.of), s.key, content)
		keeper.OwnerReferences = plan.OwnedBy(s.have)
		errs = append(errs, r.CreateFor(ctx, keeper))
	}
	return errors.Join(errs...)
}

// contentOf returns the name of the Content that a BundleDeployment deploys; empty if it is none.
func contentOf(deployment *fleetv1.BundleDeployment) string {
	if deployment == nil || deployment.Labels[fleetv1.ContentNameLabel] == "" {
		return ""
	}
	content, _, _ := strings.Cut(deployment.Spec.DeploymentID, ":")
	return content
}
