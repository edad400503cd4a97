package plan

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// deployed is a BundleDeployment of content c and values v, deployed as revision 3.
func deployed() *fleetv1.BundleDeployment {
	its := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "hcp-web", Labels: map[string]string{ContentLabel: "c"}}}
	its.Spec.DeploymentID, its.Spec.StagedDeploymentID, its.Spec.DownstreamResourcesGeneration = "id", "id", 2
	its.Spec.Options.DownstreamResources = []fleetv1.DownstreamResource{{Kind: ConfigMapKind, Name: "v"}}
	its.Status.AppliedDeploymentID, its.Status.DownstreamResourcesGeneration, its.Status.Release = "id", 2, "web/web:3"
	its.Status.Ready, its.Status.NonModified = true, true
	return its
}

func TestObserve(t *testing.T) {
	wanted := Wanted{Content: "c"}
	wanted.Target.DownstreamResources = []fleetv1.DownstreamResource{{Kind: ConfigMapKind, Name: "v"}}
	says := func(of, message string) func(*fleetv1.BundleDeployment) {
		return func(its *fleetv1.BundleDeployment) {
			its.Status.Conditions = append(its.Status.Conditions, genericcondition.GenericCondition{Type: of, Status: corev1.ConditionFalse, Message: message})
		}
	}
	waits := Release{Reason: addonsv1.HelmReleasePendingReason, Message: NotDeployed, Status: pendingUpgrade, Revision: 3}
	for name, test := range map[string]struct {
		change func(*fleetv1.BundleDeployment)
		secret bool
		want   Release
	}{
		"deployed": {func(*fleetv1.BundleDeployment) {}, false, Release{Ready: true, Deployed: true, Healthy: true, Reason: addonsv1.ReadyReason, Status: Deployed, Revision: 3}},
		// Without wait, Ready follows Helm; Fleet's own Ready wants a LoadBalancer to have an address.
		"not ready for Fleet": {func(its *fleetv1.BundleDeployment) { its.Status.Ready = false }, false, Release{Ready: true, Deployed: true, Reason: addonsv1.ReadyReason, Status: Deployed, Revision: 3}},
		"changed":             {func(its *fleetv1.BundleDeployment) { its.Status.NonModified = false }, false, Release{Ready: true, Deployed: true, Healthy: true, Reason: addonsv1.ReadyReason, Status: Deployed, Revision: 3, Message: "others have changed deployed objects"}},
		"of other content":    {func(its *fleetv1.BundleDeployment) { its.Labels[ContentLabel] = "b" }, false, waits},
		"of other values":     {func(its *fleetv1.BundleDeployment) { its.Spec.Options.DownstreamResources[0].Name = "u" }, false, waits},
		"of Fleet before 0.16": {func(its *fleetv1.BundleDeployment) { its.Spec.Options.DownstreamResources = nil }, false,
			Release{Reason: addonsv1.HelmReleasePendingReason, Message: OldFleet, Status: pendingUpgrade, Revision: 3}},
		"of another retry": {func(its *fleetv1.BundleDeployment) { its.Spec.Options.ForceSyncGeneration = 1 }, false, waits},
		"not applied":      {func(its *fleetv1.BundleDeployment) { its.Status.AppliedDeploymentID = "last" }, false, waits},
		"not copied":       {func(its *fleetv1.BundleDeployment) { its.Status.DownstreamResourcesGeneration = 1 }, false, waits},
		"first":            {func(its *fleetv1.BundleDeployment) { its.Status.Release = "" }, false, Release{Reason: addonsv1.HelmReleasePendingReason, Message: NotDeployed, Status: pendingInstall}},
		"held by a rollout": {func(its *fleetv1.BundleDeployment) { its.Spec.StagedDeploymentID = "next" }, false,
			Release{Reason: addonsv1.HelmReleasePendingReason, Message: "the rollout has not reached the Cluster yet", Status: pendingUpgrade, Revision: 3}},
		"failed, and is tried again": {says("Deployed", "denied"), false,
			Release{Reason: addonsv1.HelmInstallOrUpgradeFailedReason, Message: "denied", Status: failed, Revision: 3, Failed: true}},
		"failed, and is not tried again": {says("Installed", "not installed: immutable"), false,
			Release{Reason: addonsv1.HelmInstallOrUpgradeFailedReason, Message: "not installed: immutable", Status: failed, Revision: 3, Failed: true, GivenUp: true}},
		"refused": {says("Installed", "not installed: unable to continue with install: it exists"), false,
			Release{Reason: addonsv1.HelmInstallOrUpgradeFailedReason, Message: "not installed: unable to continue with install: it exists", Status: failed, Revision: 3, Failed: true, GivenUp: true, Refused: true}},
		"failed before the values were copied": {says("Deployed", "key 5-00.yaml is missing from secret stages/hcp-stages.for.one.1, can't use it in valuesFrom"), false,
			Release{Reason: addonsv1.HelmReleasePendingReason, Message: NotCopied, Status: pendingUpgrade, Revision: 3, Failed: true, Refused: true, WithoutValues: true}},
		"failed with a secret": {says("Deployed", "sesame"), true,
			Release{Reason: addonsv1.HelmInstallOrUpgradeFailedReason, Message: "the release failed, and has values from Secrets; see BundleDeployment fleet/hcp-web", Status: failed, Revision: 3, Failed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			its := deployed()
			test.change(its)
			wanted := wanted
			wanted.Secretive = test.secret
			if got := Observe(its, wanted); got != test.want {
				t.Errorf("got %+v\nwant %+v", got, test.want)
			}
		})
	}
	if got := Observe(nil, wanted); got.Ready || got.Reason != addonsv1.PreparingToHelmInstallReason {
		t.Errorf("nothing is %+v", got)
	}
}

// Helm has stored no release if it says so before it has asked the API server: the same values would fail again at once. All
// else may heal.
func TestRefusedBeforeTheInstallation(t *testing.T) {
	for says, isRefused := range map[string]bool{
		"values don't meet the specifications of the schema(s) in the following chart(s):\nweb:\n- at '/replicas': got string, want integer\n": true,
		"parse error at (web/templates/a.yaml:1): unexpected \"}\" in operand":                                                                 true,
		"parse error in (web/templates/a.yaml): too deep":                                                                                      true,
		"not installed: MalformedYAMLError":                                                                                                    true,
		"execution error at (web/templates/a.yaml:1:3): install cert-manager first":                                                            false,
		"template: web/templates/a.yaml:1:3: executing \"a\" at <(lookup \"v1\" \"Secret\" \"a\" \"b\").data>: nil pointer":                    false,
		"Internal error occurred: failed calling webhook":                                                                                      false,
	} {
		its := deployed()
		its.Status.Release = ""
		its.Status.Conditions = []genericcondition.GenericCondition{{Type: "Deployed", Status: corev1.ConditionFalse, Message: says}}
		observed := Observe(its, Wanted{Content: "c", Target: fleetv1.BundleTarget{BundleDeploymentOptions: its.Spec.Options}})
		record, _ := Record{}.After(observed, "a", time.Now())
		if observed.Refused != isRefused || (record.Sync == 0) != isRefused || record.Unforced == isRefused {
			t.Errorf("%s: %+v, and the record is %s", says, observed, record)
		}
	}
}

func TestProxyConditions(t *testing.T) {
	release := func(cluster string, trouble Trouble, state Release) *addonsv1.HelmReleaseProxy {
		its := &addonsv1.HelmReleaseProxy{}
		its.Spec.ClusterRef.Namespace, its.Spec.ClusterRef.Name = "team", cluster
		its.Status.Conditions = ReleaseConditions(trouble, state)
		return its
	}
	ready := Release{Ready: true, Reason: addonsv1.ReadyReason}
	drifted := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{ContentLabel: "x"}}}
	drifted.Spec.DeploymentID, drifted.Spec.StagedDeploymentID, drifted.Status.AppliedDeploymentID, drifted.Status.Release = "x", "x", "x", "default/web:2"
	fails := Release{Reason: addonsv1.HelmInstallOrUpgradeFailedReason, Message: "denied"}
	waits := Release{Reason: addonsv1.HelmReleasePendingReason, Message: NotDeployed}
	drifts := Observe(drifted, Wanted{Content: "x"})
	lost := Trouble{addonsv1.GetClusterFailedReason, "not in Fleet"}
	for name, test := range map[string]struct {
		trouble  Trouble
		releases []*addonsv1.HelmReleaseProxy
		want     string
	}{
		"nothing selected": {want: "True Ready: | UpToDate: note | Ready: no Cluster is selected"},
		"ready":            {releases: []*addonsv1.HelmReleaseProxy{release("a", Trouble{}, ready)}, want: "True Ready: | UpToDate: note | Ready:"},
		"one drifts":       {releases: []*addonsv1.HelmReleaseProxy{release("a", Trouble{}, ready), release("b", Trouble{}, drifts)}, want: "True Ready: | UpToDate: note | Ready: team/b: others have changed deployed objects"},
		"one waits":        {releases: []*addonsv1.HelmReleaseProxy{release("a", Trouble{}, waits), release("b", Trouble{}, drifts)}, want: "False HelmReleasePending: team/a: " + NotDeployed + " | UpToDate: note | HelmReleasePending: team/a: " + NotDeployed},
		"one fails":        {releases: []*addonsv1.HelmReleaseProxy{release("a", Trouble{}, waits), release("b", Trouble{}, fails)}, want: "False HelmInstallOrUpgradeFailed: team/a: " + NotDeployed + "; team/b: denied | UpToDate: note | HelmInstallOrUpgradeFailed: team/a: " + NotDeployed + "; team/b: denied"},
		"one is lost":      {releases: []*addonsv1.HelmReleaseProxy{release("a", lost, ready)}, want: "False GetClusterFailed: team/a: not in Fleet | GetClusterFailed: team/a: not in Fleet | Ready:"},
		"of its own":       {trouble: Trouble{"Own", "wrong"}, releases: []*addonsv1.HelmReleaseProxy{release("a", lost, ready)}, want: "False Own: wrong | Own: wrong | Ready:"},
		"new":              {releases: []*addonsv1.HelmReleaseProxy{{}}, want: "False HelmReleaseProxySpecsUpdating: /: the HelmReleaseProxy has not been reconciled yet | HelmReleaseProxySpecsUpdating: /: the HelmReleaseProxy has not been reconciled yet | PreparingToHelmInstall: /: the HelmReleaseProxy has not been reconciled yet"},
	} {
		t.Run(name, func(t *testing.T) {
			all := ProxyConditions(test.trouble, "note", test.releases)
			text := func(its metav1.Condition) string {
				if its.Message == "" {
					return its.Reason + ":"
				}
				return its.Reason + ": " + its.Message
			}
			got := string(all[0].Status) + " " + text(all[0]) + " | " + text(all[1]) + " | " + text(all[2])
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// IsUpToDate distinguishes trouble of a HelmChartProxy itself from trouble of one release.
func TestIsUpToDate(t *testing.T) {
	release := &addonsv1.HelmReleaseProxy{}
	release.Spec.ClusterRef.Namespace, release.Spec.ClusterRef.Name = "team-a", "one.x"
	release.Status.Conditions = ReleaseConditions(Trouble{Reason: addonsv1.GetClusterFailedReason, Message: "x"}, Release{})
	for name, test := range map[string]struct {
		trouble  Trouble
		releases []*addonsv1.HelmReleaseProxy
		want     bool
	}{
		"nothing":        {want: true},
		"a release":      {releases: []*addonsv1.HelmReleaseProxy{release, release}, want: true},
		"its chart":      {trouble: Trouble{addonsv1.HelmReleaseProxyCreationFailedReason, "Get \"https://charts/index.yaml\": refused"}},
		"its values":     {trouble: Trouble{addonsv1.ValueParsingFailedReason, "spec.valuesFrom[0]: there is no Secret"}},
		"a registry":     {trouble: Trouble{addonsv1.HelmReleaseProxyCreationFailedReason, "oci://ghcr.io/a: denied"}},
		"both":           {trouble: Trouble{addonsv1.ValueParsingFailedReason, "spec.valuesFrom[0]: x"}, releases: []*addonsv1.HelmReleaseProxy{release}},
		"not taken over": {trouble: Trouble{addonsv1.HelmReleaseProxySpecsUpdatingReason, "1 of 2 releases have not taken the change over yet"}},
	} {
		proxy := &addonsv1.HelmChartProxy{}
		proxy.Status.Conditions = ProxyConditions(test.trouble, "", test.releases)
		if got := IsUpToDate(proxy); got != test.want {
			t.Errorf("%s: %t: %s", name, got, proxy.Status.Conditions[1].Message)
		}
		proxy.Generation = 2
		if IsUpToDate(proxy) {
			t.Errorf("%s: it is up to date with a spec that nobody has looked at", name)
		}
	}
}
