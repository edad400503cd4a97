package plan

import (
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// What Fleet says of a release is said again unless values are from Secrets: a chart may print them
// when it fails.
func TestWithheld(t *testing.T) {
	its := &fleetv1.BundleDeployment{}
	its.Namespace, its.Name = "cluster-a", "hcp-web"
	copied := func(kind string) {
		its.Spec.Options.DownstreamResources = []fleetv1.DownstreamResource{{Kind: kind, Name: "hcp-web.for-all"}}
	}
	fails := func(condition, message string) {
		its.Status.Conditions = []genericcondition.GenericCondition{{Type: condition, Status: corev1.ConditionFalse, Message: message}}
	}
	mirror := &addonsv1.HelmReleaseProxy{}
	// said is what is said in all places, by the HelmReleaseProxy also the next time.
	said := func() string {
		outcome := Outcome{Cluster: Key{Namespace: "team", Name: "one"}, Release: ReleaseOf(its).After(mirror)}
		mirror.Status.Conditions = MirrorConditions(outcome)
		var all []string
		for _, condition := range append(Conditions("", "", []Outcome{outcome}), mirror.Status.Conditions...) {
			all = append(all, condition.Message)
		}
		return strings.Join(all, "\n")
	}
	says := func(what string, isSaid bool) {
		t.Helper()
		text := said()
		if strings.Contains(text, "sesame") != isSaid || strings.Contains(text, "BundleDeployment cluster-a/hcp-web") == isSaid {
			t.Errorf("%s:\n%s", what, text)
		}
	}
	its.Spec.DeploymentID = "a"
	fails(fleetv1.BundleDeploymentConditionDeployed, "execution error: sesame")
	copied("ConfigMap")
	says("values from a ConfigMap", true)
	copied("Secret")
	says("values from a Secret", false)
	its.Spec.DeploymentID = "b"
	copied("ConfigMap")
	says("no Secret any more, but the agent has not deployed that yet", false)
	its.Status.AppliedDeploymentID = "b"
	says("it has", true)

	its.Spec.StagedDeploymentID = "b"
	copied("Secret")
	fails(fleetv1.BundleDeploymentConditionInstalled, "sesame")
	says("not installed", false)
	its.Status.Conditions = nil
	its.Status.NonReadyStatus = []fleetv1.NonReadyStatus{{Kind: "Deployment", Name: "sesame"}}
	says("not ready", false)
	copied("ConfigMap")
	says("not ready, without Secrets", true)
	its.Spec.StagedOptions.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "Secret", Name: "hcp-web.for-all"}}
	says("a Secret is on its way", false)
}
