package plan

import (
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Who has a release keeps it, whoever comes. If none has it, it is the platform's before a tenant's, and then the first's by
// name. A record alone, which a tenant may have forged, takes nothing from a HelmChartProxy whose release Fleet deploys.
func TestRivalOf(t *testing.T) {
	platform, own, other := Key{Namespace: "platform", Name: "z"}, Key{Namespace: "team", Name: "b"}, Key{Namespace: "team", Name: "a"}
	for name, test := range map[string]struct {
		claims map[Key]Claim
		want   Key
	}{
		"alone":                                         {map[Key]Claim{own: Asks}, Key{}},
		"nobody knows it":                               {nil, Key{}},
		"the platform comes first":                      {map[Key]Claim{own: Asks, other: Asks, platform: Asks}, platform},
		"then the first by name":                        {map[Key]Claim{own: Asks, other: Asks}, other},
		"it is the first":                               {map[Key]Claim{own: Asks, {Namespace: "team", Name: "c"}: Asks}, Key{}},
		"another has it":                                {map[Key]Claim{own: Asks, platform: Asks, other: Has}, other},
		"another says so in its record":                 {map[Key]Claim{own: Asks, {Namespace: "team", Name: "c"}: Installed}, Key{Namespace: "team", Name: "c"}},
		"it has it, and the platform asks":              {map[Key]Claim{own: Has, platform: Asks, other: Installed}, Key{}},
		"its record says so, and another's is deployed": {map[Key]Claim{own: Installed, platform: Has}, platform},
		"its record says so, and others ask":            {map[Key]Claim{own: Installed, platform: Asks}, Key{}},
		"both have it":                                  {map[Key]Claim{own: Has, platform: Has}, platform},
		"three have it":                                 {map[Key]Claim{own: Has, platform: Has, other: Has}, platform},
	} {
		if got, found := OtherHolder(own, "team", test.claims); (got != test.want || !found) && (found || test.want != Key{}) {
			t.Errorf("%s: it is %v (%t)", name, got, found)
		}
	}
	tenant, far := Key{Namespace: "team", Name: "a"}, map[Key]Claim{{Namespace: "a", Name: "web"}: Asks, {Namespace: "b", Name: "web"}: Asks}
	if got, found := OtherHolder(Key{Namespace: "b", Name: "web"}, "team", far); !found || got.Namespace != "a" {
		t.Errorf("of one name, the first is %v (%t)", got, found)
	}
	if got, found := OtherHolder(platform, "team", map[Key]Claim{platform: Asks, tenant: Asks}); found {
		t.Errorf("a tenant's keeps it from the platform's: %v", got)
	}
}

// Both sides of any two agree on who gets the release, so never both and never none.
func TestRivalsAgree(t *testing.T) {
	a, b := Key{Namespace: "team", Name: "a"}, Key{Namespace: "platform", Name: "b"}
	for _, its := range []Claim{Asks, Installed, Has} {
		for _, others := range []Claim{Asks, Installed, Has} {
			claims := map[Key]Claim{a: its, b: others}
			_, aWaits := OtherHolder(a, "team", claims)
			_, bWaits := OtherHolder(b, "team", claims)
			if isShared := its == Has && others == Has; aWaits && bWaits != isShared || !aWaits && !bWaits {
				t.Errorf("with %d and %d, they wait: %t, %t", its, others, aWaits, bWaits)
			}
		}
	}
}

// A message names only what its author may see.
func TestTaken(t *testing.T) {
	release := &addonsv1.HelmReleaseProxy{}
	release.Namespace, release.Spec.ReleaseNamespace, release.Spec.ReleaseName = "team", "kube-system", "ccm"
	near, far := Key{Namespace: "team", Name: "stable"}, Key{Namespace: "platform", Name: "secret"}
	for _, own := range []Claim{Asks, Has} {
		for _, its := range []Claim{Asks, Installed, Has} {
			for rival, name := range map[Key]string{near: "HelmChartProxy stable ", far: "another HelmChartProxy "} {
				got := Taken(release, own, rival, its)
				if got.Reason != "ReleaseTaken" || !strings.HasPrefix(got.Message, name) || !strings.Contains(got.Message, "kube-system/ccm") || strings.Contains(got.Message, "platform") {
					t.Errorf("%d, %d, %v: %v", own, its, rival, got)
				}
			}
		}
	}
}

// A target has the release of its Bundle, or the one that Helm has generated a name for.
func TestReleasesOf(t *testing.T) {
	bundle := &fleetv1.Bundle{}
	bundle.Spec.DefaultNamespace, bundle.Spec.Helm = "apps", &fleetv1.HelmOptions{ReleaseName: "web"}
	bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "one"}, {ClusterName: "two"}, {ClusterName: "three"}}
	bundle.Spec.Targets[1].Helm, bundle.Spec.Targets[2].Helm = &fleetv1.HelmOptions{Version: "1.0.0"}, &fleetv1.HelmOptions{ReleaseName: "web-1234567890"}
	if got := strings.Join(ReleasesOf(bundle), " "); got != "apps/web apps/web-1234567890" {
		t.Errorf("they are %s", got)
	}
	for cluster, want := range map[string]bool{"one": true, "two": true, "three": false, "four": false} {
		if got := HasTarget(bundle, cluster, "apps/web"); got != want {
			t.Errorf("for %s, it is %t", cluster, got)
		}
	}
	deployment := &fleetv1.BundleDeployment{}
	deployment.Status.Release = "apps/web:12"
	if !Deploys(deployment, "apps/web") || Deploys(deployment, "apps/we") || Deploys(&fleetv1.BundleDeployment{}, "apps/web") {
		t.Error("a BundleDeployment has another release")
	}
}
