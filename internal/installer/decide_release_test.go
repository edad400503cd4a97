package installer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/defects"
)

func planned(spec addonsv1.FleetAddonConfigSpec) addonsv1.FleetAddonConfigSpec {
	install := *spec.Install
	install.Mode = addonsv1.InstallPlan
	spec.Install = &install
	return spec
}

// decided is the expected plan.
type decided struct {
	step step
	puts string
	// installed and configured are status, reason and a part of the message, like "False Planned:
	// would be"; empty if the plan reports no such condition.
	installed, configured string
}

func (d decided) check(t *testing.T, s *state) {
	t.Helper()
	if s.now.IsZero() {
		s.now = now
	}
	p := s.next()
	if p.step != d.step || text(p.version) != d.puts {
		t.Errorf("step %q %s, want %q %s", p.step, text(p.version), d.step, d.puts)
	}
	for _, side := range []struct{ want, got string }{{d.installed, summary(p.installed)}, {d.configured, summary(p.configured)}} {
		if strings.Contains(side.got, "nil") || strings.Contains(side.got, "%!") {
			t.Errorf("told %q", side.got)
		}
		head, part, _ := strings.Cut(side.want, ": ")
		if gotHead, _, _ := strings.Cut(side.got, ": "); head != gotHead || !strings.Contains(side.got, part) {
			t.Errorf("told %q, want %q", side.got, side.want)
		}
	}
}

func summary(condition *metav1.Condition) string {
	if condition == nil {
		return ""
	}
	return fmt.Sprint(condition.Status, " ", condition.Reason, ": ", condition.Message)
}

var (
	found016 = map[string]any{"apiServerURL": "https://here:6443", "apiServerCA": "CA"}
	here016  = &server{url: "https://here:6443", ca: "CA", from: "somewhere"}
)

// deployed returns both releases, made by an installer, at a version each.
func deployed(crds, fleet string, values map[string]any) state {
	return state{crds: released(crds, nil), fleet: released(fleet, values)}
}

func (s state) with(change func(*state)) state { change(&s); return s }

func offering(versions ...string) func(*state) {
	return func(s *state) { s.attempts = offers(versions...) }
}

func outOfReach(s *state) { s.attempts = unanswered(errTest) }

func isPending(r *Release, since time.Duration) {
	r.Status, r.MadeBy, r.Before, r.Changed = "pending-upgrade", "a", "a", now.Add(-since)
}

func TestPlanShows(t *testing.T) {
	custom := map[string]any{"debug": true}
	for name, test := range map[string]struct {
		spec  addonsv1.FleetAddonConfigSpec
		state state
		want  decided
	}{
		"asks all the same":      {version("0.16.0"), state{}, decided{step: ask}},
		"nothing there":          {version("0.16.0"), state{attempts: offers("0.16.0")}, decided{installed: "False Planned: Fleet 0.16.0 would be installed", configured: "False Planned: would be installed"}},
		"CRDs there":             {version("0.16.0"), state{attempts: offers("0.16.0"), crds: released("0.16.0", nil)}, decided{installed: "False Planned: Fleet 0.16.0 would be installed", configured: "False Planned: would be installed"}},
		"an older one":           {version("0.17.0"), deployed("0.16.0", "0.16.0", custom).with(offering("0.17.0")), decided{installed: "False Planned: upgraded from 0.16.0 to 0.17.0", configured: "False Planned: upgraded"}},
		"other values":           {version("0.16.0"), deployed("0.16.0", "0.16.0", custom).with(func(s *state) { s.server = here016 }), decided{installed: "False Planned: the values of Fleet 0.16.0 would be changed", configured: "False Planned: would be changed"}},
		"everything is deployed": {version("0.16.0"), deployed("0.16.0", "0.16.0", found016).with(func(s *state) { s.server = here016 }), decided{installed: "True KnownDefect", configured: "True Configured"}},
		"half done": {version("0.16.0"), deployed("0.16.0", "0.16.0", custom).with(func(s *state) { isPending(s.fleet, 2*abandoned) }),
			decided{installed: "False Planned: next step would be to unblock the release of Fleet", configured: "False Planned: to unblock the release"}},
		"an invalid version, other values": {version("newest"), deployed("0.16.0", "0.16.0", custom).with(func(s *state) { s.server = here016 }),
			decided{installed: "False VersionInvalid: neither", configured: "False Planned: next step would be to deploy Fleet"}},
		"someone else's, other settings": {version("0.16.0"), state{server: here016, fleet: foreign(released("0.15.0", nil)), settings: settingsOf(`{"a":1}`)},
			decided{installed: "False ForeignRelease", configured: "False Planned: next step would be to write the settings"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.want.check(t, test.state.asking(t, planned(inferring(test.spec))))
		})
	}
}

func TestThroughReleases(t *testing.T) {
	plain := map[string]any{"bootstrap": map[string]any{"enabled": false}}
	for name, test := range map[string]struct {
		spec  addonsv1.FleetAddonConfigSpec
		state state
		want  decided
	}{
		"no spec.install, half done": {addonsv1.FleetAddonConfigSpec{}, deployed("0.16.0", "0.16.0", nil).with(func(s *state) { isPending(s.fleet, abandoned) }), decided{}},
		"no spec.install, failed":    {addonsv1.FleetAddonConfigSpec{}, state{fleet: failed(released("0.16.0", nil), "")}, decided{}},
		"CRDs, changed with Helm": {inferring(version("0.16.0")), state{crds: released("0.16.0", nil)}.with(func(s *state) { isPending(s.crds, time.Minute) }),
			decided{installed: "False HelmBusy: Helm release fleet-crd is pending-upgrade", configured: "False HelmBusy: fleet-crd"}},
		"Fleet, changed with Helm": {inferring(version("0.16.0")), deployed("0.16.0", "0.16.0", nil).with(func(s *state) { isPending(s.fleet, time.Minute) }),
			decided{installed: "False HelmBusy: Helm release fleet is pending-upgrade", configured: "False HelmBusy: 1h0m0s"}},
		"both, CRDs first": {inferring(version("0.16.0")), deployed("0.16.0", "0.16.0", nil).with(func(s *state) { isPending(s.fleet, abandoned); isPending(s.crds, abandoned) }),
			decided{step: freeCRDs}},
		"failed, not asked for, settings": {inferring(addonsv1.FleetAddonConfigSpec{}), state{server: here016, fleet: failed(released("0.16.0", nil), "")},
			decided{step: putFleet}},
		"exact, CRDs are older": {version("0.16.0"), deployed("0.15.0", "0.16.0", plain), decided{step: ask}},
		"exact, CRDs are older, offered": {version("0.16.0"), deployed("0.15.0", "0.16.0", plain).with(offering("0.16.0")),
			decided{step: putCRDs, puts: "0.16.0"}},
		"exact, CRDs failed": {version("0.16.0"), deployed("0.16.0", "0.16.0", plain).with(func(s *state) { s.crds.Status = "failed"; offering("0.16.0")(s) }),
			decided{step: putCRDs, puts: "0.16.0"}},
		"exact, CRDs are gone": {version("0.16.0"), state{fleet: released("0.16.0", plain), attempts: offers("0.16.0")}, decided{step: putCRDs, puts: "0.16.0"}},
		"range, met, asks":     {version("0.16.x"), deployed("0.16.0", "0.16.0", plain), decided{step: ask}},
		"range, newer":         {version("0.16.x"), deployed("0.16.0", "0.16.0", plain).with(offering("0.16.0", "0.16.1")), decided{step: putCRDs, puts: "0.16.1", installed: "True Upgrading: from 0.16.0 to 0.16.1"}},
		"range, newest is there": {version("0.16.x"), deployed("0.16.1", "0.16.1", plain).with(offering("0.16.0", "0.16.1", "0.17.0")),
			decided{installed: "True KnownDefect: Fleet 0.16.1"}},
		"range, newer than offered":           {version("0.16.x"), deployed("0.16.1", "0.16.1", plain).with(offering("0.16.0")), decided{installed: "True KnownDefect: Fleet 0.16.1"}},
		"range, out of reach":                 {version("0.16.x"), deployed("0.16.1", "0.16.1", plain).with(outOfReach), decided{installed: "True RepositoryUnreachable: Fleet 0.16.1; no agent can find the management cluster: set spec.config.server; Fleet 0.16.1 has a known defect: an agent that has lost its connection can uninstall everything that it manages; fixed in 0.16.2 (https://github.com/rancher/fleet/issues/5406); newer versions cannot be looked up: out of reach"}},
		"range, out of reach, CRDs are older": {version("0.16.x"), deployed("0.16.0", "0.16.1", plain).with(outOfReach), decided{installed: "False RepositoryUnreachable: Fleet 0.16.1 stays as it is"}},
		"another range, out of reach":         {version("0.17.x"), deployed("0.17.0", "0.16.1", plain).with(outOfReach), decided{installed: "False RepositoryUnreachable: Fleet 0.16.1 stays as it is"}},
		"out of reach, nothing there, settings": {inferring(version("0.16.0")), state{attempts: unanswered(errTest)},
			decided{installed: "False RepositoryUnreachable", configured: "False FleetMissing: see the condition FleetInstalled"}},
		"out of reach, nothing runs": {inferring(version("0.16.0")), state{server: here016, attempts: unanswered(errTest), crds: released("0.16.0", nil), fleet: failed(released("0.16.0", nil), "")},
			decided{installed: "False RepositoryUnreachable"}},
		"downgrade, settings are there": {inferring(version("0.15.0")), deployed("0.16.0", "0.16.0", found016).with(func(s *state) { s.server = here016; offering("0.15.0")(s) }),
			decided{installed: "False DowngradeRefused: specify 0.16.0 or newer", configured: "True Configured: set as values of Helm release fleet; agents find the management cluster at https://here:6443"}},
		"downgrade, new settings": {inferring(version("0.15.0")), deployed("0.16.0", "0.16.0", plain).with(func(s *state) { s.server = here016; offering("0.15.0")(s) }),
			decided{step: putFleet, installed: "False DowngradeRefused", configured: ""}},
		"newer CRDs, settings only": {inferring(addonsv1.FleetAddonConfigSpec{}), state{server: here016, fleet: released("0.16.0", found016)}, decided{configured: "True Configured"}},
		"first of all": {inferring(version("0.16.0")), state{crds: released("0.16.0", nil), attempts: offers("0.16.0")},
			decided{step: putFleet, puts: "0.16.0", installed: "False Installing: installing Fleet 0.16.0", configured: "False Configuring: being installed"}},
		"ours, failed with the same values": {version("0.16.0"), deployed("0.16.0", "0.16.0", plain).with(func(s *state) { s.fleet.Status = "failed" }),
			decided{step: putFleet}},
		"handed over, all the same": {version("0.16.0"), state{crds: released("0.16.0", nil), fleet: foreign(released("0.16.0", plain))}.with(func(s *state) { s.adopt = true }),
			decided{step: putFleet}},
		"handed over, CRDs too": {version("0.16.0"), state{crds: foreign(released("0.16.0", nil)), fleet: foreign(released("0.16.0", plain)), attempts: offers("0.16.0")}.with(func(s *state) { s.adopt = true }),
			decided{step: putCRDs, puts: "0.16.0"}},
		"handed over while it is at work": {version("0.16.0"), state{crds: foreign(released("0.16.0", nil)), fleet: released("0.16.0", plain)}.with(func(s *state) { s.adopt = true; isPending(s.fleet, time.Minute); foreign(s.fleet) }),
			decided{installed: "False HelmBusy", configured: ""}},
		"not made for it": {version("0.16.0"), deployed("0.16.0", "0.16.0", found016).with(func(s *state) { s.fleet.KubeVersion, s.kubernetes = ">=1.40", semver.MustParse("1.36.0") }),
			decided{installed: "True KnownDefect: agents find the management cluster at https://here:6443; its chart requires Kubernetes >=1.40"}},
		"a CA alone": {inferring(version("0.16.0")), deployed("0.16.0", "0.16.0", map[string]any{"apiServerCA": "CA"}).with(func(s *state) { s.server = &server{ca: "CA", from: "Secret a/b"} }),
			decided{installed: "True KnownDefect", configured: "True Configured: agents trust the CA from Secret a/b"}},
		"every right": {bootstrapping(version("0.16.0"), true), deployed("0.16.0", "0.16.0", map[string]any{"bootstrap": map[string]any{"enabled": true}}),
			decided{installed: "True KnownDefect", configured: "True Configured: Fleet manages this cluster, and has all rights here"}},
		"bootstrapLocalCluster on":  {bootstrapping(version("0.16.0"), true), deployed("0.16.0", "0.16.0", plain), decided{step: putFleet}},
		"bootstrapLocalCluster off": {bootstrapping(version("0.16.0"), false), deployed("0.16.0", "0.16.0", map[string]any{"bootstrap": map[string]any{"enabled": true}}), decided{step: putFleet}},
		"no values at all":          {gated("rancher-config"), state{crds: released("0.16.0", map[string]any{}), fleet: released("0.16.0", nil), gatesMap: gatesOf("a: 1\n")}, decided{step: writeGates}},
		"gates that cannot be written": {gated("rancher-config"), state{fleet: released("0.16.0", nil), gatesProblem: &Problem{addonsv1.FeatureGatesUnwritableReason, "not there"}},
			decided{configured: "False FeatureGatesUnwritable: not there"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.want.check(t, test.state.asking(t, test.spec))
		})
	}
}

// A version that follows others avoids known defects, as long as another is on offer. An exact version is
// installed nevertheless, and so is the only one of a range. The condition stays True, and names the defect.
func TestKnownDefects(t *testing.T) {
	plain := map[string]any{"bootstrap": map[string]any{"enabled": false}}
	const first, second = "Fleet 0.16.1 has a known defect: an agent that has lost its connection can uninstall", "fixed in 0.16.2 (https://github.com/"
	for name, test := range map[string]struct {
		spec  addonsv1.FleetAddonConfigSpec
		state state
		want  decided
	}{
		"exact":        {version("0.16.1"), state{attempts: offers("0.16.1", "0.16.2")}, decided{step: putCRDs, puts: "0.16.1", installed: "False Installing: installing Fleet 0.16.1"}},
		"exact, there": {version("0.16.1"), deployed("0.16.1", "0.16.1", plain).with(offering("0.16.1", "0.16.2")), decided{installed: "True KnownDefect: " + first + " everything that it manages; " + second}},
		"exact, fixed": {version("0.16.2"), deployed("0.16.2", "0.16.2", plain), decided{installed: "True Installed: Fleet 0.16.2"}},
		"exact, shown": {planned(version("0.16.1")), state{attempts: offers("0.16.1", "0.16.2")}, decided{installed: "False Planned: Fleet 0.16.1 would be installed; " + first}},
		"range":        {version(">=0.15.0"), state{attempts: offers("0.15.9", "0.16.1", "0.16.2")}, decided{step: putCRDs, puts: "0.16.2", installed: "False Installing"}},
		"range, all have it": {version("0.16.x"), deployed("0.16.0", "0.16.0", plain).with(offering("0.16.0", "0.16.1", "0.17.0")),
			decided{step: putCRDs, puts: "0.16.1", installed: "True Upgrading"}},
		"older branch": {version("0.15.x"), deployed("0.15.8", "0.15.8", plain).with(offering("0.15.8")), decided{installed: "True KnownDefect: Fleet 0.15.8 may have a known defect: "}},
	} {
		t.Run(name, func(t *testing.T) {
			test.want.check(t, test.state.asking(t, test.spec))
		})
	}
}

// A newer version that is left out is named.
func TestLeftOut(t *testing.T) {
	known := defects.Known
	t.Cleanup(func() { defects.Known = known })
	defects.Known = append(slices.Clone(known), defects.Defect{Versions: ">=0.17.0-0 <0.17.2-0", Text: "it eats disks", Fixed: "0.17.2"})
	for name, test := range map[string]struct{ spec, offered, chosen, avoided string }{
		"nothing":                 {">=0.12-0", "", "", ""},
		"only ones with a defect": {">=0.12-0", "0.15.0 0.17.1 0.16.1", "0.17.1", ""},
		"newest has none":         {">=0.12-0", "0.16.1 0.17.2 0.17.0", "0.17.2", ""},
		"newest has one":          {">=0.12-0", "0.17.0 0.16.1 0.17.1 0.16.2 0.16.3", "0.16.3", "0.17.1"},
		"a release candidate":     {">=0.12-0", "0.16.1 0.16.2-rc.1", "0.16.2-rc.1", ""},
		"only that is in range":   {"0.17.x", "0.16.3 0.17.0", "0.17.0", ""},
		"exact":                   {"0.17.1", "0.16.3 0.17.1", "0.17.1", ""},
	} {
		chosen, avoided, _ := installFrom(version(test.spec).Install).choose(parsed(strings.Fields(test.offered)...))
		if text(chosen) != test.chosen || text(avoided) != test.avoided {
			t.Errorf("%s: %q, and %q is avoided", name, text(chosen), text(avoided))
		}
	}
	plain := map[string]any{"bootstrap": map[string]any{"enabled": false}}
	for there, want := range map[string]string{
		"0.16.3": "True Installed: not upgraded: Fleet 0.17.1 has a known defect: it eats disks",
		"0.17.1": "True KnownDefect: Fleet 0.17.1; no agent can find the management cluster: set spec.config.server; Fleet 0.17.1 has a known defect: it eats disks", // It is not downgraded.
	} {
		s := deployed(there, there, plain).with(offering("0.16.3", "0.17.1"))
		decided{installed: want}.check(t, s.asking(t, latest()))
	}
}

func bootstrapping(spec addonsv1.FleetAddonConfigSpec, wanted bool) addonsv1.FleetAddonConfigSpec {
	spec.Config = &addonsv1.FleetConfig{BootstrapLocalCluster: ptr.To(wanted)}
	return spec
}

// A failed attempt is reported with its own reason, together with the version that keeps running.
func TestBackedOff(t *testing.T) {
	plain := map[string]any{"bootstrap": map[string]any{"enabled": false}}
	withServer := func(s *state) { s.server = here016 }
	settings := func(reason string) func(*state) {
		return func(s *state) {
			values := s.chartValues(s.version())
			s.attempts[(&plan{step: putFleet, values: values}).what()] = &attempt{due: now.Add(2 * time.Minute), failure: &Problem{reason, "no room"}}
		}
	}
	tried := func(what, reason string) func(*state) {
		return func(s *state) {
			s.attempts[what] = &attempt{due: now.Add(time.Minute), failure: &Problem{reason, "helm says no"}}
		}
	}
	for name, test := range map[string]struct {
		spec    addonsv1.FleetAddonConfigSpec
		state   state
		changes []func(*state)
		want    decided
	}{
		"CRDs": {inferring(version("0.16.0")), state{attempts: offers("0.16.0")}, []func(*state){tried("deploy the CRDs 0.16.0", "")},
			decided{installed: "False InstallFailed: helm says no", configured: "False ReleaseFailed: not in effect: helm says no"}},
		"CRDs, due": {inferring(version("0.16.0")), state{attempts: offers("0.16.0"), now: now.Add(time.Minute)}, []func(*state){tried("deploy the CRDs 0.16.0", "")},
			decided{step: putCRDs, puts: "0.16.0", installed: "False Installing"}},
		"Fleet": {inferring(version("0.16.0")), state{attempts: offers("0.16.0"), crds: released("0.16.0", nil)}, []func(*state){tried("deploy Fleet 0.16.0", "")},
			decided{installed: "False InstallFailed: helm says no", configured: "False ReleaseFailed: helm says no"}},
		"another version": {inferring(version("0.16.1")), state{attempts: offers("0.16.1"), crds: released("0.16.1", nil)}, []func(*state){tried("deploy Fleet 0.16.0", "")},
			decided{step: putFleet, puts: "0.16.1", installed: "False Installing", configured: "False Configuring"}},
		"cannot be fetched": {version("0.16.0"), state{attempts: offers("0.16.0")}, []func(*state){tried("deploy the CRDs 0.16.0", addonsv1.RepositoryInvalidReason)},
			decided{installed: "False RepositoryInvalid: helm says no"}},
		"cannot be fetched, Fleet of the range is deployed": {version("0.16.x"), deployed("0.16.0", "0.16.0", plain).with(offering("0.16.1")), []func(*state){tried("deploy the CRDs 0.16.1", addonsv1.RepositoryUnreachableReason)},
			decided{installed: "True RepositoryUnreachable: Fleet 0.16.0 keeps running; helm says no"}},
		"cannot be fetched, another version is deployed": {version("0.17.0"), deployed("0.16.0", "0.16.0", plain).with(offering("0.17.0")), []func(*state){tried("deploy the CRDs 0.17.0", addonsv1.RepositoryUnreachableReason)},
			decided{installed: "False RepositoryUnreachable: Fleet 0.16.0 keeps running"}},
		"CRDs cannot be fetched for the deployed Fleet": {version("0.16.x"), deployed("0.15.0", "0.16.0", plain).with(offering("0.16.0")), []func(*state){tried("deploy the CRDs 0.16.0", addonsv1.RepositoryUnreachableReason)},
			decided{installed: "False RepositoryUnreachable: Fleet 0.16.0 keeps running"}},
		"upgrade, settings are there": {inferring(version("0.17.0")), deployed("0.17.0", "0.16.0", found016).with(offering("0.17.0")), []func(*state){withServer, tried("deploy Fleet 0.17.0", "")},
			decided{installed: "False UpgradeFailed: Fleet 0.16.0 keeps running; helm says no", configured: "True Configured: https://here:6443"}},
		"upgrade, new settings": {inferring(version("0.17.0")), deployed("0.17.0", "0.16.0", plain).with(offering("0.17.0")), []func(*state){withServer, tried("deploy Fleet 0.17.0", "")},
			decided{step: putFleet, installed: "False UpgradeFailed: Fleet 0.16.0 keeps running"}},
		"upgrade, and new settings": {inferring(version("0.17.0")), deployed("0.17.0", "0.16.0", plain).with(offering("0.17.0")), []func(*state){withServer, tried("deploy Fleet 0.17.0", ""), settings("")},
			decided{installed: "False UpgradeFailed: helm says no", configured: "False ReleaseFailed: no room"}},
		"CRDs of an upgrade, settings are there": {inferring(version("0.17.0")), deployed("0.16.0", "0.16.0", found016).with(offering("0.17.0")), []func(*state){withServer, tried("deploy the CRDs 0.17.0", "")},
			decided{installed: "False UpgradeFailed", configured: "True Configured"}},
		"CRDs of the running Fleet, settings unchanged": {inferring(version("0.16.0")), deployed("0.15.0", "0.16.0", found016).with(offering("0.16.0")), []func(*state){withServer, tried("deploy the CRDs 0.16.0", "")},
			decided{installed: "False UpgradeFailed: Fleet 0.16.0 keeps running", configured: "True Configured"}},
		"CRDs of the running Fleet, new settings": {inferring(version("0.16.0")), deployed("0.15.0", "0.16.0", plain).with(offering("0.16.0")), []func(*state){withServer, tried("deploy the CRDs 0.16.0", "")},
			decided{step: putFleet, installed: "False UpgradeFailed: Fleet 0.16.0 keeps running"}},
		"new settings": {inferring(version("0.16.0")), deployed("0.16.0", "0.16.0", plain), []func(*state){withServer, settings("")},
			decided{installed: "False UpgradeFailed: no room", configured: "False ReleaseFailed: no room"}},
		"new settings, not asked for": {inferring(addonsv1.FleetAddonConfigSpec{}), deployed("0.16.0", "0.16.0", plain), []func(*state){withServer, settings("")},
			decided{configured: "False ReleaseFailed: no room"}},
		"other settings": {inferring(version("0.16.0")), deployed("0.16.0", "0.16.0", plain), []func(*state){withServer, settings(""), func(s *state) { s.server = &server{url: "https://there", ca: "CA"} }},
			decided{step: putFleet}},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.state.asking(t, test.spec)
			if s.attempts == nil {
				s.attempts = map[string]*attempt{}
			}
			for _, change := range test.changes {
				change(s)
			}
			test.want.check(t, s)
		})
	}
}

// A release that never became ready, and that spec.install no longer asks for, gets its settings at
// the version that it has.
func TestSettingsOfWhatFailed(t *testing.T) {
	s := state{now: now, fleet: failed(released("0.12.3", nil), "")}.asking(t, gated(""))
	p := s.next()
	environment, _ := p.values["extraEnv"].([]any)
	if p.step != putFleet || p.version != nil || len(environment) != 2 {
		t.Errorf("%q %s, extraEnv %v", p.step, text(p.version), environment)
	}
}
