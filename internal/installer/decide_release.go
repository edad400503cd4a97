package installer

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/defects"
)

// abandoned is how long another Helm client may work on a release before the installer considers that client
// dead. It is long, because hooks may take long.
const abandoned = time.Hour

// busyInterval is how often the installer checks whether another Helm client has finished.
const busyInterval = 5 * time.Second

// missing reports that there is no Fleet, and that the installer is not to install one.
func (s *state) missing() *plan {
	if s.install != nil || s.fleet != nil {
		return nil
	}
	return &plan{configured: configuredIs(false, addonsv1.FleetMissingReason, "Fleet is not installed; install it, or set spec.install")}
}

// free marks half-done releases as failed. Helm refuses to change them as they are.
func (s *state) free() *plan {
	for _, entry := range []struct {
		release *Release
		name    string
		free    step
	}{{s.crds, CRDChart, freeCRDs}, {s.fleet, FleetChart, freeFleet}} {
		switch r := entry.release; {
		case r == nil || !r.isPending():
		case r.byInstaller(), s.now.Sub(r.Changed) >= abandoned:
			// Only the leading installer acts, one step after the other, so no other installer is still working on it.
			return &plan{step: entry.free}
		default:
			text := fmt.Sprintf("Helm release %s is %s, set by another Helm client: the installer waits until that client finishes, or for %s; if none is running, roll the release back with Helm", entry.name, r.Status, abandoned)
			return &plan{installed: installedIs(false, addonsv1.HelmBusyReason, "%s", text), configured: configuredIs(false, addonsv1.HelmBusyReason, "%s", text), later: busyInterval}
		}
	}
	return nil
}

// deploy deploys the version, first its CRDs, and the settings.
func (s *state) deploy() *plan {
	goal, _, p := s.goal()
	if p != nil {
		return p
	}
	if p = s.putCRDs(goal); p == nil {
		p = s.putFleet(goal)
	}
	if p != nil && s.planOnly() {
		return s.planned(goal)
	}
	return p
}

// current returns the version of Fleet that is deployed, or nil if none is.
func (s *state) current() *semver.Version {
	if s.fleet == nil {
		return nil
	}
	return s.fleet.Deployed
}

// goal returns the version to deploy, and in stale why newer versions cannot be looked up. If no version can be
// deployed now, it returns a plan instead.
func (s *state) goal() (version *semver.Version, stale *Problem, wait *plan) {
	current := s.current()
	switch {
	case s.install == nil && current == nil:
		return s.fleet.Version, nil, nil
	case s.install != nil && s.install.invalid != nil:
		return s.stay(current, s.install.invalid)
	case s.install == nil, !s.install.follows() && s.install.isMetBy(current) && s.crdsServe(current):
		return current, nil, nil
	case s.offered == nil:
		return nil, nil, &plan{step: ask}
	case s.offered.err != nil:
		problem := &Problem{addonsv1.RepositoryUnreachableReason, s.offered.err.Error()}
		errors.As(s.offered.err, &problem)
		return s.stay(current, problem)
	}
	chosen, _, problem := s.install.choose(s.offered.offers)
	switch {
	case problem != nil:
		return s.stay(current, problem)
	case current == nil || !chosen.LessThan(current):
		return chosen, nil, nil
	case s.install.isMetBy(current):
		return current, nil, nil // The repository no longer offers a version as new as the installed one.
	}
	return nil, nil, s.withheld(installedIs(false, addonsv1.DowngradeRefusedReason,
		"Fleet %s is installed and stays: its CRDs and objects cannot be downgraded to %s; specify %[1]s or newer, or uninstall Fleet first", current, chosen))
}

// stay keeps the current version if it satisfies the FleetAddonConfig. Otherwise it reports the problem
// and changes no version.
func (s *state) stay(current *semver.Version, problem *Problem) (*semver.Version, *Problem, *plan) {
	if s.install.isMetBy(current) && s.crdsServe(current) {
		return current, problem, nil
	}
	text := problem.Message
	if current != nil {
		text += fmt.Sprintf("; Fleet %s stays as it is", current)
	}
	return nil, nil, s.withheld(installedIs(false, problem.Reason, "%s", text))
}

// withheld plans no change of version. If Fleet is deployed, it still reports the settings, or
// applies them.
func (s *state) withheld(why *metav1.Condition) *plan {
	p := &plan{installed: why}
	switch {
	case s.fleet == nil:
		p.configured = configuredIs(false, addonsv1.FleetMissingReason, "Fleet is not installed: see the condition %s", addonsv1.FleetInstalledCondition)
	case sameValues(s.chartValues(s.version()), s.fleet.Values):
		p.configured = s.configured()
	default:
		return s.settingsOnly(p)
	}
	return p
}

// settingsOnly plans new settings for the deployed version: they do not wait for a version that cannot be deployed.
func (s *state) settingsOnly(p *plan) *plan {
	if s.current() == nil {
		return p
	}
	switch next := s.putFleet(s.current()); {
	case next == nil:
		p.configured = s.configured()
	case next.step == rest:
		p.configured, p.later = next.configured, cmp.Or(p.later, next.later)
	default:
		next.installed = p.installed
		return next
	}
	return p
}

// crdsServe reports whether the deployed CRDs are new enough for a version.
func (s *state) crdsServe(version *semver.Version) bool {
	return s.crds != nil && s.crds.isOurs() && s.crds.Status == StatusDeployed && !s.crds.Version.LessThan(version)
}

func (s *state) putCRDs(goal *semver.Version) *plan {
	if s.install == nil || s.crdsServe(goal) {
		return nil
	}
	return s.backedOff(&plan{step: putCRDs, version: goal, installed: s.underWay(goal)})
}

func (s *state) putFleet(goal *semver.Version) *plan {
	p := &plan{step: putFleet, version: goal, values: s.chartValues(goal), installed: s.underWay(goal)}
	switch r := s.fleet; {
	case r == nil:
		p.configured = configuredIs(false, addonsv1.ConfiguringReason, "Fleet is being installed")
	case r.isOurs() && r.Status == StatusDeployed && r.Version.Equal(goal) && sameValues(p.values, r.Values):
		return nil
	case s.current() != nil && s.current().Equal(goal), s.install == nil:
		p.version = nil // The release holds the chart.
	}
	return s.backedOff(p)
}

// underWay returns the condition to report while a version is being deployed; nil if it is already deployed.
func (s *state) underWay(goal *semver.Version) *metav1.Condition {
	switch current := s.current(); {
	case current == nil:
		return installedIs(false, addonsv1.InstallingReason, "installing Fleet %s", goal)
	case current.Equal(goal):
		return nil
	default:
		return installedIs(true, addonsv1.UpgradingReason, "upgrading Fleet from %s to %s", current, goal)
	}
}

// backedOff delays a step that failed shortly before.
func (s *state) backedOff(p *plan) *plan {
	last := s.attempts[p.what()]
	if last == nil || !s.now.Before(last.due()) {
		return p
	}
	result := &plan{
		later:      last.due().Sub(s.now),
		installed:  s.failed(last),
		configured: configuredIs(false, addonsv1.ReleaseFailedReason, "the settings are not in effect: %s", last.message),
	}
	if p.version == nil {
		return result
	}
	return s.settingsOnly(result)
}

// failed reports a failed attempt. Installed stays True if only fetching a newer version failed,
// and the deployed one satisfies the FleetAddonConfig too.
func (s *state) failed(last *attempt) *metav1.Condition {
	current := s.current()
	if current == nil {
		return installedIs(false, cmp.Or(last.reason, addonsv1.InstallFailedReason), "%s", last.message)
	}
	isMet := last.reason != "" && s.install != nil && s.install.isMetBy(current) && s.crdsServe(current)
	return installedIs(isMet, cmp.Or(last.reason, addonsv1.UpgradeFailedReason), "Fleet %s keeps running; %s", current, last.message)
}

// what returns the same text for attempts that would fail in the same way. An attempt at a version fails with any
// settings.
func (p *plan) what() string {
	if p.version != nil {
		return fmt.Sprint(p.step, " ", p.version)
	}
	return fmt.Sprintf("%s %#v", p.step, p.values) // Maps are sorted.
}

// planned reports the step that spec.install.mode: Apply would take.
func (s *state) planned(goal *semver.Version) *plan {
	var text string
	switch current := s.current(); {
	case current == nil:
		text = fmt.Sprintf("Fleet %s would be installed", goal)
	case !current.Equal(goal):
		text = fmt.Sprintf("Fleet would be upgraded from %s to %s", current, goal)
	default:
		text = fmt.Sprintf("the values of Fleet %s would be changed", goal)
	}
	configured := configuredIs(false, addonsv1.PlannedReason, "%s, because spec.install.mode is Plan", text)
	if defect := defects.Message(goal); defect != "" {
		text += "; " + defect
	}
	return &plan{configured: configured, installed: installedIs(false, addonsv1.PlannedReason,
		"%s; `kubectl muster plan` shows every object that would change, and spec.install.mode: Apply changes them", text)}
}

// deployed reports the deployed version, and writes feature gates into the ConfigMap that the user names for them.
func (s *state) deployed() *plan {
	p := s.gatesElsewhere()
	if p == nil {
		p = &plan{configured: s.configured()}
	}
	reason, text := addonsv1.InstalledReason, fmt.Sprintf("Fleet %s", s.fleet.Version)
	if url, _ := s.fleet.Values["apiServerURL"].(string); url != "" {
		text += "; agents find the management cluster at " + url
	} else {
		text += "; no agent can find the management cluster: set spec.config.server"
	}
	if unfit := s.fleet.unfit(s.kubernetes); unfit != "" {
		text += "; " + unfit
	}
	if defect := defects.Message(s.version()); defect != "" {
		reason = addonsv1.KnownDefectReason
		text += "; " + defect
	}
	if avoided := s.avoided(); avoided != nil {
		text += "; not upgraded: " + defects.Message(avoided)
	}
	if _, stale, _ := s.goal(); stale != nil {
		reason = stale.Reason
		text += "; newer versions cannot be looked up: " + stale.Message
	}
	p.installed = installedIs(true, reason, "%s", text)
	return p
}

// avoided returns a newer version on offer that is not installed, because it has a known defect; nil if there is none.
func (s *state) avoided() *semver.Version {
	if s.install == nil || s.install.invalid != nil || s.offered == nil {
		return nil
	}
	_, avoided, _ := s.install.choose(s.offered.offers)
	if avoided == nil || !avoided.GreaterThan(s.fleet.Version) {
		return nil
	}
	return avoided
}

// configured reports settings that are in the values of the installer's own release.
func (s *state) configured() *metav1.Condition {
	if s.serverProblem != nil {
		return s.serverProblem.configured()
	}
	text := "set as values of Helm release " + FleetChart
	if s.Server != nil {
		text += "; " + s.server.describe()
	}
	if ptr.Deref(s.BootstrapLocalCluster, false) {
		text += "; Fleet manages this cluster, and has all rights here"
	}
	return configuredIs(true, addonsv1.ConfiguredReason, "%s", text)
}

func sameValues(a, b map[string]any) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}
