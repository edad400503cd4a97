package installer

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/defects"
)

// abandoned is how long another Helm client may work on a release, of whose end no event would tell. It is long,
// because hooks may take long.
const abandoned = time.Hour

// missing reports that there is no Fleet, and that the installer is not to install one.
func (s *state) missing() *plan {
	if s.install != nil || s.fleet != nil {
		return nil
	}
	return &plan{configured: configuredIs(false, addonsv1.FleetMissingReason, "Fleet is not installed; install it, or set spec.install")}
}

// free marks half-done releases as failed. Helm refuses to change them as they are.
func (s *state) free() *plan {
	return cmp.Or(s.unblock(freeCRDs, CRDChart, s.crds), s.unblock(freeFleet, FleetChart, s.fleet))
}

func (s *state) unblock(kind step, name string, r *Release) *plan {
	switch {
	case r == nil || !r.isPending():
		return nil
	case r.byInstaller(), s.now.Sub(r.Changed) >= abandoned:
		// Only the leading installer acts, one step after the other, so no other installer is still working on it.
		return &plan{step: kind}
	}
	text := fmt.Sprintf("Helm release %s is %s, set by another Helm client: the installer waits until that client finishes, or for %s; if none is running, roll the release back with Helm", name, r.Status, abandoned)
	return &plan{installed: installedIs(false, addonsv1.HelmBusyReason, "%s", text), configured: configuredIs(false, addonsv1.HelmBusyReason, "%s", text)}
}

// deploy deploys the version, first its CRDs, and the settings.
func (s *state) deploy() *plan {
	goal, p := s.goal()
	if p != nil {
		return p
	}
	switch p = cmp.Or(s.putCRDs(goal.version), s.putFleet(goal.version)); {
	case p == nil:
		return s.deployed(goal)
	case s.planOnly():
		return s.planned(goal.version)
	default:
		return p
	}
}

// current returns the version of Fleet that is deployed, or nil if none is.
func (s *state) current() *semver.Version {
	if s.fleet == nil {
		return nil
	}
	return s.fleet.Deployed
}

// goal is the version to deploy.
type goal struct {
	version *semver.Version
	// avoided is a newer version that is not deployed, because it has a known defect; nil if there is none.
	avoided *semver.Version
	// stale says why newer versions cannot be looked up; nil if they can.
	stale *Problem
}

// goal returns the version to deploy. If none can be deployed now, it returns a plan instead: the next step, or no
// change of the version.
func (s *state) goal() (goal, *plan) {
	current := s.current()
	if s.install == nil {
		return goal{version: cmp.Or(current, s.fleet.Version)}, nil
	}
	isMet, answer := s.install.isMetBy(current), s.attempts[s.install.lookup()]
	var found goal
	problem := s.install.invalid
	switch {
	case problem != nil:
	case s.install.exact != nil && isMet && s.crdsServe(current):
		return goal{version: current}, nil
	case answer.isDue(s.now):
		return goal{}, &plan{step: ask}
	case answer.failure != nil:
		problem = answer.failure
	default:
		found.version, found.avoided, problem = s.install.choose(answer.offers)
	}
	switch {
	case problem == nil && (current == nil || !found.version.LessThan(current)):
		return found, nil
	case problem == nil && isMet: // The repository no longer offers a version as new as the installed one.
		return goal{version: current, avoided: found.avoided}, nil
	case problem == nil:
		return goal{}, s.withheld(addonsv1.DowngradeRefusedReason, fmt.Sprintf(
			"Fleet %s is installed and stays: its CRDs and objects cannot be downgraded to %s; specify %[1]s or newer, or uninstall Fleet first", current, found.version))
	case isMet && s.crdsServe(current):
		return goal{version: current, stale: problem}, nil
	case current != nil:
		return goal{}, s.withheld(problem.Reason, fmt.Sprintf("%s; Fleet %s stays as it is", problem.Message, current))
	default:
		return goal{}, s.withheld(problem.Reason, problem.Message)
	}
}

// withheld plans no change of version. If Fleet is deployed, it still reports the settings, or
// applies them.
func (s *state) withheld(reason, text string) *plan {
	p := &plan{installed: installedIs(false, reason, "%s", text)}
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
		p.configured = next.configured
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

// backedOff delays a step that failed shortly before, and reports the failure. Installed stays True if only fetching a newer
// version failed, and the deployed one satisfies the FleetAddonConfig too.
func (s *state) backedOff(p *plan) *plan {
	last := s.attempts[p.what()]
	if last.isDue(s.now) {
		return p
	}
	current, why := s.current(), last.failure
	result := &plan{
		installed:  installedIs(false, cmp.Or(why.Reason, addonsv1.InstallFailedReason), "%s", why.Message),
		configured: configuredIs(false, addonsv1.ReleaseFailedReason, "the settings are not in effect: %s", why.Message),
	}
	if current != nil {
		isMet := why.Reason != "" && s.install != nil && s.install.isMetBy(current) && s.crdsServe(current)
		result.installed = installedIs(isMet, cmp.Or(why.Reason, addonsv1.UpgradeFailedReason), "Fleet %s keeps running; %s", current, why.Message)
	}
	if p.version == nil {
		return result
	}
	return s.settingsOnly(result)
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
func (s *state) deployed(goal goal) *plan {
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
	if goal.avoided != nil && goal.avoided.GreaterThan(s.fleet.Version) {
		text += "; not upgraded: " + defects.Message(goal.avoided)
	}
	if goal.stale != nil {
		reason = goal.stale.Reason
		text += "; newer versions cannot be looked up: " + goal.stale.Message
	}
	p.installed = installedIs(true, reason, "%s", text)
	return p
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
