package random

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
)

// releaseOperations play Fleet, and the repository. Once a release is installed, or a chart is unavailable, the
// outcome depends on the state before.
var releaseOperations = []operation{
	{name: "FleetReleases", weight: 12, draw: drawSlot, do: fleetReleases, racy: always},
	{name: "RepositoryFails", weight: 5, draw: drawKind(string(repository.Failing), string(repository.HangingUp)), do: repositoryFails, racy: always},
	// The program retries by itself within a minute; a run does not wait for that.
	{name: "RepositoryAnswers", weight: 20, draw: drawValue("restarted"), do: repositoryAnswers, racy: always},
}

// repositoryFails makes the repository fail. It also kills the program, because a run cannot see what the program
// remembers of the repository.
func repositoryFails(r *run, step Step) (bool, error) {
	if r.state.Helm.Down || len(r.state.Helm.Proxies) == 0 {
		return false, nil
	}
	_, err := forgetRepository(r, step)
	repo.Fail(repository.Outage(step.Kind))
	r.state.Helm.Down = true
	return true, err
}

func repositoryAnswers(r *run, step Step) (bool, error) {
	if !r.state.Helm.Down {
		return false, nil
	}
	repo.Fail(repository.Answering)
	r.state.Helm.Down = false
	if step.Value == "" {
		return true, nil
	}
	_, err := forgetRepository(r, step)
	return true, err
}

// forgetRepository kills the program, which has downloads in memory.
var forgetRepository = stops(helmProcess, (*stack.Stack).Kill)

// fleetReleases plays Fleet, whose agents have installed everything in one Bundle.
func fleetReleases(r *run, step Step) (bool, error) {
	if !r.isUp(syncerProcess) || !r.isUp(helmProcess) {
		return false, nil // Muster might see later changes before this one.
	}
	carried := slices.DeleteFunc(slices.Collect(maps.Keys(r.state.Helm.Carriers)), func(of oracle.Carriage) bool { return !r.isPlayed(of) })
	if len(carried) == 0 {
		return false, nil
	}
	slices.SortFunc(carried, func(a, b oracle.Carriage) int { return cmp.Compare(a.String()+a.Release, b.String()+b.Release) })
	of := carried[step.Cluster%len(carried)]
	var bundles fleetv1.BundleList
	if err := admin.List(ctx, &bundles, client.InNamespace(of.Namespace)); err != nil {
		return false, err
	}
	carrier := r.state.Helm.Carriers[of]
	for i := range bundles.Items {
		bundle := &bundles.Items[i]
		if bundle.UID != carrier.UID {
			continue
		}
		for j := range bundle.Spec.Targets {
			target := &bundle.Spec.Targets[j]
			if err := r.deploy(bundle, target); err != nil {
				return true, err
			}
			fleet := r.state.FleetClusters[oracle.Key{Namespace: of.Namespace, Name: target.ClusterName}]
			r.state.Helm.Installed[carrier.UID] = fleet.Annotations[domain+"/imported-from"]
		}
		return true, nil
	}
	return false, nil
}

// isPlayed reports whether the run plays Fleet for a carrier: it leaves out carriers of moved Clusters and of paused
// HelmChartProxies.
func (r *run) isPlayed(of oracle.Carriage) bool {
	proxy := r.state.Helm.Proxies[of.Proxy]
	if proxy == nil || proxy.Annotations[pausedKey] != "" {
		return false
	}
	for name := range r.state.Helm.Carriers[of].Targets {
		fleet := r.state.FleetClusters[oracle.Key{Namespace: of.Namespace, Name: name}]
		if fleet == nil || fleet.Annotations[domain+"/released"] != "" || oracle.FleetNamespace(client.ObjectKeyFromObject(fleet)) == oracle.FleetNamespace(r.collidedKey()) {
			return false
		}
	}
	return true
}

// deploy makes the objects that Fleet makes for a target, and reports as its agent does.
func (r *run) deploy(bundle *fleetv1.Bundle, target *fleetv1.BundleTarget) error {
	key := oracle.Key{Namespace: bundle.Namespace, Name: target.ClusterName}
	namespace := &corev1.Namespace{}
	namespace.Name = oracle.FleetNamespace(key)
	// The stack removes it with the Fleet Cluster, and has made it unless the Cluster's agent registers itself.
	namespace.Labels = map[string]string{fleetv1.ManagedLabel: "true"}
	namespace.Annotations = map[string]string{fleetv1.ClusterNamespaceAnnotation: key.Namespace, fleetv1.ClusterAnnotation: key.Name}
	if err := client.IgnoreAlreadyExists(admin.Create(ctx, namespace)); err != nil {
		return err
	}
	if r.state.FleetNamespaces[namespace.Name].Name == "" {
		r.state.FleetNamespaces[namespace.Name] = key
	}
	its := &fleetv1.BundleDeployment{}
	its.Namespace, its.Name = namespace.Name, bundle.Name
	if _, err := controllerutil.CreateOrUpdate(ctx, admin, its, func() error {
		its.Labels = maps.Clone(bundle.Labels)
		maps.Copy(its.Labels, map[string]string{
			fleetv1.BundleLabel: bundle.Name, fleetv1.BundleNamespaceLabel: bundle.Namespace,
			fleetv1.ClusterLabel: target.ClusterName, fleetv1.ClusterNamespaceLabel: bundle.Namespace,
		})
		options := &its.Spec.Options
		options.Helm, options.DownstreamResources, options.ForceSyncGeneration = target.Helm, target.DownstreamResources, target.ForceSyncGeneration
		its.Spec.DeploymentID = fmt.Sprint("deployed-", bundle.Generation)
		its.Spec.StagedOptions, its.Spec.StagedDeploymentID = its.Spec.Options, its.Spec.DeploymentID
		return nil
	}); err != nil {
		return err
	}
	before := its.DeepCopy()
	its.Status.AppliedDeploymentID, its.Status.Release = its.Spec.DeploymentID, fmt.Sprintf("%s/%s:1", bundle.Spec.DefaultNamespace, bundle.Spec.Helm.ReleaseName)
	its.Status.Ready, its.Status.NonModified = true, true
	return admin.Status().Patch(ctx, its, client.MergeFrom(before))
}

// fleetRollsOut plays Fleet and its agents where a rollout waits for them: agents install what the Bundle says,
// except where its partitions leave them out.
func (r *run) fleetRollsOut() error {
	var bundles fleetv1.BundleList
	if err := admin.List(ctx, &bundles); err != nil {
		return err
	}
	for i := range bundles.Items {
		bundle := &bundles.Items[i]
		of, _ := oracle.MadeFor(bundle)
		if proxy := r.state.Helm.Proxies[of]; proxy == nil || proxy.Spec.Rollout == nil || !bundle.DeletionTimestamp.IsZero() {
			continue
		}
		for j := range bundle.Spec.Targets {
			target := &bundle.Spec.Targets[j]
			its := &fleetv1.BundleDeployment{}
			key := client.ObjectKey{Namespace: oracle.FleetNamespace(oracle.Key{Namespace: bundle.Namespace, Name: target.ClusterName}), Name: bundle.Name}
			if err := admin.Get(ctx, key, its); client.IgnoreNotFound(err) != nil {
				return err
			} else if err != nil || isCurrent(its, bundle, target) || isLeftOut(bundle, target) {
				continue
			}
			if err := r.deploy(bundle, target); err != nil {
				return err
			}
		}
	}
	return nil
}

func isCurrent(its *fleetv1.BundleDeployment, bundle *fleetv1.Bundle, target *fleetv1.BundleTarget) bool {
	return !its.DeletionTimestamp.IsZero() || maps.Equal(its.Labels, merged(its.Labels, bundle.Labels)) &&
		slices.Equal(its.Spec.Options.DownstreamResources, target.DownstreamResources) && its.Spec.Options.ForceSyncGeneration == target.ForceSyncGeneration
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func isLeftOut(bundle *fleetv1.Bundle, target *fleetv1.BundleTarget) bool {
	strategy := bundle.Spec.RolloutStrategy
	return strategy != nil && !slices.ContainsFunc(strategy.Partitions, func(its fleetv1.Partition) bool { return its.ClusterName == target.ClusterName })
}

// fleetWithdraws plays Fleet, which deletes deployments that no Bundle targets any more.
func (r *run) fleetWithdraws() error {
	return r.withdraw(func(bundle *fleetv1.Bundle, fleetCluster string) bool { return !oracle.IsTarget(bundle, fleetCluster) })
}

func (r *run) withdraw(isOver func(bundle *fleetv1.Bundle, fleetCluster string) bool) error {
	var deployments fleetv1.BundleDeploymentList
	if err := admin.List(ctx, &deployments); err != nil {
		return err
	}
	for i := range deployments.Items {
		its := &deployments.Items[i]
		key := client.ObjectKey{Namespace: its.Labels[fleetv1.BundleNamespaceLabel], Name: its.Labels[fleetv1.BundleLabel]}
		if !strings.HasPrefix(key.Namespace, r.id+"-") {
			continue
		}
		bundle := &fleetv1.Bundle{}
		if err := admin.Get(ctx, key, bundle); client.IgnoreNotFound(err) != nil {
			return err
		}
		if !isOver(bundle, its.Labels[fleetv1.ClusterLabel]) {
			continue
		}
		if err := admin.Delete(ctx, its); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
