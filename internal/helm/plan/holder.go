package plan

import (
	"cmp"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Two HelmChartProxies may ask for the same release on a Cluster: the same name in the same namespace. Fleet would deploy
// both in turns, and uninstall the release of both when one of them goes.

// Claim says how far a HelmChartProxy has come with a release on a Cluster.
type Claim int

// A record may be forged, so it does not count beside what Fleet deploys.
const (
	Asks      Claim = iota
	Installed       // by its record
	Has             // a target, or a BundleDeployment
)

// OtherHolder returns the HelmChartProxy that keeps a release on a Cluster of a namespace from own, or that has it, too. Who has
// it keeps it. If none does, it is for a HelmChartProxy of another namespace than the Cluster's, and then for the first by
// name.
func OtherHolder(own Key, namespace string, claims map[Key]Claim) (other Key, found bool) {
	order := func(a, b Key) int {
		return cmp.Or(-cmp.Compare(claims[a], claims[b]), compareBool(a.Namespace == namespace, b.Namespace == namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	}
	for its := range claims {
		if its != own && (!found || order(its, other) < 0) {
			other, found = its, true
		}
	}
	return other, found && (claims[other] == Has || order(other, own) < 0)
}

// compareBool compares as false < true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Taken says what another holder is to a HelmChartProxy, by the claims of both. Authors may see only what is in their namespace.
func Taken(release *addonsv1.HelmReleaseProxy, own Claim, other Key, its Claim) Trouble {
	name := "another HelmChartProxy"
	if other.Namespace == release.Namespace {
		name = "HelmChartProxy " + other.Name
	}
	text := name + " has release " + ReleaseOf(release) + " on this Cluster; it is installed for this one when that no longer has it"
	switch {
	case own == Has:
		text = name + " has release " + ReleaseOf(release) + " on this Cluster, too: the last change wins, and if one goes, it may uninstall the release of both; part them as described in helmchartproxy.md"
	case its == Asks:
		text = name + " asks for release " + ReleaseOf(release) + " on this Cluster, too, and comes first"
	}
	return Trouble{addonsv1.ReleaseTakenReason, text}
}

// IsTaken reports whether a HelmReleaseProxy says that another HelmChartProxy has its release.
func IsTaken(release *addonsv1.HelmReleaseProxy) bool {
	return find(release, addonsv1.ClusterAvailableCondition).Reason == addonsv1.ReleaseTakenReason
}

func releaseKey(namespace, name string) string { return namespace + "/" + name }

// ReleaseOf returns the namespace and the name of the release of a HelmReleaseProxy.
func ReleaseOf(release *addonsv1.HelmReleaseProxy) string {
	return releaseKey(release.Spec.ReleaseNamespace, release.Spec.ReleaseName)
}

// ReleasesOf returns the releases of the targets of a Bundle, as ReleaseOf does.
func ReleasesOf(bundle *fleetv1.Bundle) []string {
	var all []string
	for i := range bundle.Spec.Targets {
		all = append(all, releaseOfTarget(bundle, &bundle.Spec.Targets[i]))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func releaseOfTarget(bundle *fleetv1.Bundle, target *fleetv1.BundleTarget) string {
	var name string
	for _, its := range []*fleetv1.HelmOptions{bundle.Spec.Helm, target.Helm} { // A name that CAAPH has generated is in the target.
		if its != nil {
			name = cmp.Or(its.ReleaseName, name)
		}
	}
	return releaseKey(bundle.Spec.DefaultNamespace, name)
}

// HasTarget reports whether a Bundle has a target for a release on a Fleet Cluster.
func HasTarget(bundle *fleetv1.Bundle, fleetCluster, release string) bool {
	return slices.ContainsFunc(bundle.Spec.Targets, func(its fleetv1.BundleTarget) bool {
		return its.ClusterName == fleetCluster && releaseOfTarget(bundle, &its) == release
	})
}

// Deploys reports whether an agent has deployed a release for a BundleDeployment.
func Deploys(deployment *fleetv1.BundleDeployment, release string) bool {
	its, _, _ := strings.Cut(deployment.Status.Release, ":")
	return its == release
}
