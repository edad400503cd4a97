package proxy

import (
	"cmp"
	"context"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/stamp"
)

// ByCluster is the index of HelmReleaseProxies by their Cluster. ByRelease is that of HelmReleaseProxies by their Cluster
// and release, and that of Bundles by the releases of their targets.
const (
	ByCluster = "cluster"
	ByRelease = "release"
)

// ClusterIndex returns the value of ByCluster.
func ClusterIndex(release client.Object) []string {
	return []string{plan.ClusterOf(release.(*addonsv1.HelmReleaseProxy)).String()}
}

// AskedIndex returns the value of ByRelease for a HelmReleaseProxy.
func AskedIndex(release client.Object) []string {
	return []string{askedOf(release.(*addonsv1.HelmReleaseProxy))}
}

func askedOf(release *addonsv1.HelmReleaseProxy) string {
	return plan.ClusterOf(release).String() + "/" + plan.ReleaseOf(release)
}

// Asking selects the HelmReleaseProxies for the same release on the same Cluster.
func Asking(release *addonsv1.HelmReleaseProxy) client.MatchingFields {
	return client.MatchingFields{ByRelease: askedOf(release)}
}

// ReleaseIndex returns the values of ByRelease for a Bundle.
func ReleaseIndex(bundle client.Object) []string {
	return plan.ReleasesOf(bundle.(*fleetv1.Bundle))
}

// Claims returns the HelmChartProxies that ask for a release on a Fleet Cluster, or have it. One whose HelmReleaseProxy was
// lost still has its target. It also returns how many of their HelmReleaseProxies there are.
func Claims(ctx context.Context, reader client.Reader, release *addonsv1.HelmReleaseProxy, fleetCluster string) (claims map[plan.Key]plan.Claim, asking int, err error) {
	cluster, name := plan.ClusterOf(release), plan.ReleaseOf(release)
	var bundles fleetv1.BundleList
	var deployments fleetv1.BundleDeploymentList
	var releases addonsv1.HelmReleaseProxyList
	err = cmp.Or(
		reader.List(ctx, &bundles, client.InNamespace(cluster.Namespace), client.MatchingFields{ByRelease: name}, client.UnsafeDisableDeepCopy),
		reader.List(ctx, &deployments, client.InNamespace(stamp.FleetNamespace(cluster.Namespace, fleetCluster)), client.UnsafeDisableDeepCopy),
		reader.List(ctx, &releases, Asking(release), client.UnsafeDisableDeepCopy),
	)
	if err != nil {
		return nil, 0, fmt.Errorf("listing who has release %s: %w", name, err)
	}
	askers, looked := map[plan.Key]asker{}, map[plan.Key]int{}
	claims = map[plan.Key]plan.Claim{}
	for i := range bundles.Items {
		its := &bundles.Items[i]
		if of, _ := plan.ProxyOf(its); store.IsFor(its, of) && plan.HasTarget(its, fleetCluster, name) {
			claims[of] = plan.Has
		}
	}
	for i := range releases.Items {
		its := &releases.Items[i]
		of, err := OwnerOf(ctx, reader, its)
		if err != nil {
			return nil, 0, err
		}
		if of == nil { // It is forged, and costs little.
			continue
		}
		asking++
		if key := client.ObjectKeyFromObject(of); looked[key] < mostOfOne {
			looked[key]++
			askers[labelled(plan.Labels(key))] = asker{key, BundleKey(its).Name}
			if claim, isClaim := claimOf(of, its, fleetCluster); isClaim {
				claims[key] = max(claims[key], claim)
			}
		}
	}
	for i := range deployments.Items {
		// Fleet shortens long names, so another Fleet Cluster may have the same namespace.
		if its := &deployments.Items[i]; its.Labels[fleetv1.ClusterNamespaceLabel] == cluster.Namespace {
			noteDeployment(claims, askers, its, name)
		}
	}
	return claims, asking, nil
}

// mostOfOne is how many HelmReleaseProxies of one HelmChartProxy count for a release on a Cluster: there is one, and another
// while a generated name changes. Users could forge more, each with a long record.
const mostOfOne = 4

// UntilFree is how long one of so many HelmReleaseProxies for a release waits before it looks whether the release is free, if
// no event tells. Each look takes the longer, the more there are.
func UntilFree(asking int) time.Duration {
	return min(plan.PollInterval*time.Duration(1+asking/MostAsking), plan.LastDelay)
}

// MostAsking is how many of those that ask for a release an event wakes.
const MostAsking = 50

// claimOf returns the Claim of a HelmReleaseProxy, by its record; false for none. One that is paused, or that a Policy refuses,
// asks for nothing: others would wait for it in vain.
func claimOf(of *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy, fleetCluster string) (plan.Claim, bool) {
	if record := plan.RecordOf(release); plan.IsInstalledOnce(of, release) || record.Installed && record.FleetCluster == fleetCluster {
		return plan.Installed, true
	}
	return plan.Asks, release.DeletionTimestamp.IsZero() && of.DeletionTimestamp.IsZero() && !capiannotations.HasPaused(of) && !plan.IsPolicyRefusing(release) && !IsOutdated(of, release)
}

// noteDeployment notes who has the release by a BundleDeployment: it has deployed it, or is about to for a HelmReleaseProxy.
func noteDeployment(claims map[plan.Key]plan.Claim, askers map[plan.Key]asker, deployment *fleetv1.BundleDeployment, release string) {
	of, hasRelease := labelled(deployment.Labels), plan.Deploys(deployment, release)
	if its, found := askers[of]; found && deployment.Labels[stamp.ManagedByLabel] == stamp.ManagedBy {
		of, hasRelease = its.proxy, hasRelease || deployment.Name == its.bundle
	}
	if hasRelease {
		claims[of] = plan.Has
	}
}

// asker is a HelmChartProxy that asks for a release, and the Bundle that it asks for it in.
type asker struct {
	proxy  plan.Key
	bundle string
}

// labelled returns the HelmChartProxy that labels name; a long name is shortened there.
func labelled(labels map[string]string) plan.Key {
	return plan.Key{Namespace: labels[plan.ProxyNamespaceLabel], Name: labels[plan.ProxyLabel]}
}

// OwnerOf returns the HelmChartProxy of a HelmReleaseProxy, which must not be changed; nil if it has none.
func OwnerOf(ctx context.Context, reader client.Reader, release *addonsv1.HelmReleaseProxy) (*addonsv1.HelmChartProxy, error) {
	owner := plan.OwnerOf(release)
	if owner == nil {
		return nil, nil
	}
	of := &addonsv1.HelmChartProxy{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: release.Namespace, Name: owner.Name}, of, client.UnsafeDisableDeepCopy)
	if err != nil || !Concerns(of, release) {
		return nil, client.IgnoreNotFound(err)
	}
	return of, nil
}
