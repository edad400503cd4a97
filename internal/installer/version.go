package installer

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/defects"
)

// isMetBy reports whether a version satisfies the FleetAddonConfig, without asking a repository. Only a repository
// knows the newest release, so any version satisfies a request for that.
func (i *install) isMetBy(version *semver.Version) bool {
	switch {
	case version == nil, i.invalid != nil:
		return false
	case i.exact != nil:
		return version.Equal(i.exact)
	case i.within != nil:
		return i.within.Check(version)
	default:
		return true
	}
}

// lookup identifies what the repository is asked.
func (i *install) lookup() string {
	return fmt.Sprint(ask, " ", i.repository, " ", i.secret, " ", i.text)
}

// choose returns the newest version that the repository offers and the FleetAddonConfig allows. It prefers versions
// without a known defect. A newer version that it leaves out because of one is avoided, which is nil otherwise.
func (i *install) choose(offers []*semver.Version) (chosen, avoided *semver.Version, problem *Problem) {
	allowed := slices.DeleteFunc(newestFirst(offers), func(version *semver.Version) bool {
		// Without a version or range, only releases count, not pre-releases.
		return !i.isMetBy(version) || i.exact == nil && i.within == nil && version.Prerelease() != ""
	})
	sound := slices.IndexFunc(allowed, func(version *semver.Version) bool { return len(defects.Of(version)) == 0 })
	switch {
	case sound > 0:
		return allowed[sound], allowed[0], nil
	case len(allowed) > 0:
		return allowed[0], nil, nil
	}
	return nil, nil, &Problem{addonsv1.VersionUnknownReason, fmt.Sprintf("%s has no %s of both %s and %s; it has %s",
		i.source(), i.wanted, FleetChart, CRDChart, listed(offers))}
}

// source names the repository in messages, without a password.
func (i *install) source() string {
	parsed, err := url.Parse(i.repository)
	if err != nil {
		return "spec.install.repository"
	}
	return parsed.Redacted()
}

func newestFirst(offers []*semver.Version) []*semver.Version {
	return slices.SortedStableFunc(slices.Values(offers), func(a, b *semver.Version) int { return b.Compare(a) })
}

// listed names the newest versions on offer.
func listed(offers []*semver.Version) string {
	const most = 5
	versions := newestFirst(offers)
	var names []string
	for _, version := range versions[:min(most, len(versions))] {
		names = append(names, version.Original())
	}
	if len(names) == 0 {
		return "none"
	}
	text := strings.Join(names, ", ")
	if more := len(versions) - most; more > 0 {
		text += fmt.Sprintf(" and %d older ones", more)
	}
	return text
}

// both returns the versions that both charts have, because Fleet needs both.
func both(fleet, crds []*semver.Version) []*semver.Version {
	return slices.DeleteFunc(slices.Clone(fleet), func(version *semver.Version) bool {
		return !slices.ContainsFunc(crds, version.Equal)
	})
}

// unfit returns a message if the release's chart does not support a version of Kubernetes; empty
// if it does, or does not say.
func (r *Release) unfit(kubernetes *semver.Version) string {
	if r.KubeVersion == "" || kubernetes == nil {
		return ""
	}
	fits, err := semver.NewConstraint(r.KubeVersion)
	if err != nil || fits.Check(kubernetes) {
		return ""
	}
	return fmt.Sprintf("its chart requires Kubernetes %s, and this cluster has %s", r.KubeVersion, kubernetes)
}
