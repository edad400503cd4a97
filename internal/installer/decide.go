package installer

import (
	"cmp"
	"fmt"
	"time"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// step is one action. After each step the installer observes everything again.
type step string

const (
	rest          step = ""
	ask           step = "ask the repository"
	freeCRDs      step = "unblock the release of the CRDs"
	freeFleet     step = "unblock the release of Fleet"
	putCRDs       step = "deploy the CRDs"
	putFleet      step = "deploy Fleet"
	writeSettings step = "write the settings"
	writeGates    step = "write the feature gates"
)

// plan is the next step, and the conditions to report if there is none.
type plan struct {
	step step
	// version is the chart version to deploy; nil keeps the deployed chart.
	version *semver.Version
	// archive is the chart in that version, once it has been fetched.
	archive []byte
	values  map[string]any
	text    string
	// installed and configured are reported when no step is left, and before a step that takes long.
	installed, configured *metav1.Condition
	// later is the longest time until the next observation; zero means the usual interval.
	later time.Duration
}

// chart names the chart that the step deploys.
func (p *plan) chart() string {
	if p.step == putCRDs {
		return CRDChart
	}
	return FleetChart
}

func condition(kind string, holds bool, reason, format string, args ...any) *metav1.Condition {
	result := &metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
	if holds {
		result.Status = metav1.ConditionTrue
	}
	return result
}

func installedIs(holds bool, reason, format string, args ...any) *metav1.Condition {
	return condition(addonsv1.FleetInstalledCondition, holds, reason, format, args...)
}

func configuredIs(holds bool, reason, format string, args ...any) *metav1.Condition {
	return condition(addonsv1.FleetConfiguredCondition, holds, reason, format, args...)
}

// next returns the next step.
func (s *state) next() plan {
	var p plan
	if s.isNothing() {
		return p
	}
	switch s.owner() {
	case ranchers:
		p = s.underRancher()
	case unmanaged:
		p = s.configureForeign(installedIs(false, addonsv1.ForeignFleetReason, "Fleet is installed here without a Helm release, and the installer left it unchanged; remove spec.install, or uninstall that Fleet but keep its CRDs"))
	case theirs:
		if !s.adopt {
			p = s.configureForeign(installedIs(false, addonsv1.ForeignReleaseReason, "Fleet is installed here by Helm releases that Muster does not own, and the installer left them unchanged; upgrade them with Helm and remove spec.install, or hand them over with the annotation %s: \"true\" on this FleetAddonConfig", AdoptAnnotation))
			break
		}
		fallthrough
	default:
		p = s.throughReleases()
	}
	p = s.shown(p)
	if s.install == nil {
		p.installed = nil
	}
	if !s.asksForSettings() {
		p.configured = nil
	}
	return p
}

// shown turns a step into a condition that announces it, if spec.install.mode is Plan.
func (s *state) shown(p plan) plan {
	if s.install == nil || !s.install.planOnly || p.step == rest || p.step == ask {
		return p
	}
	const format = "the next step would be to %s; set spec.install.mode to Apply to take it"
	return plan{
		installed:  cmp.Or(p.installed, installedIs(false, addonsv1.PlannedReason, format, p.step)),
		configured: configuredIs(false, addonsv1.PlannedReason, format, p.step),
	}
}

// underRancher leaves Fleet to Rancher, except for the feature gates in the ConfigMap that the user names.
func (s *state) underRancher() plan {
	p := plan{
		installed: installedIs(false, addonsv1.ManagedByRancherReason, "Rancher installs Fleet here (Deployment cattle-system/rancher) and the installer left it unchanged; remove spec.install, and upgrade Rancher instead"),
	}
	var problem *metav1.Condition
	p.step, p.text, problem, p.later = s.gatesStep()
	switch {
	case problem != nil:
		p.configured = problem
	case p.step != rest: // The next report has the result.
	case s.serverWanted() || s.bootstrap != nil:
		p.configured = configuredIs(false, addonsv1.ConfigureInRancherReason, "Rancher configures Fleet here (Deployment cattle-system/rancher) and the installer left it unchanged; set server-url and cacerts in Rancher, and remove spec.config.server")
	case !s.gatesElsewhere():
		p.configured = configuredIs(false, addonsv1.ConfigureInRancherReason, "Rancher configures Fleet here; name its ConfigMap in spec.config.featureGates.configMap.ref, usually cattle-system/rancher-config")
	default:
		p.configured = configuredIs(true, addonsv1.ConfiguredReason, "the feature gates are in ConfigMap %s, from where Rancher takes them", s.gates.configMap)
	}
	return p
}

func (w *wanted) serverWanted() bool { return w.server != nil }

// gatesElsewhere reports whether the user names a ConfigMap for the feature gates.
func (s *state) gatesElsewhere() bool { return s.gates != nil && s.gates.configMap.Name != "" }

func (w *wanted) asksForSettings() bool {
	return w.serverWanted() || w.gates != nil || w.bootstrap != nil
}

// configureForeign configures a Fleet that the installer does not own, as far as that is possible without
// changing its Helm release.
func (s *state) configureForeign(installed *metav1.Condition) plan {
	p := plan{installed: installed}
	var problem *metav1.Condition
	if p.step, p.text, problem, p.later = s.gatesStep(); p.step != rest || problem != nil {
		p.configured = problem
		return p
	}
	if s.serverProblem != nil {
		p.configured = configuredIs(false, s.serverProblem.Reason, "%s", s.serverProblem.Message)
		return p
	}
	if s.serverWanted() {
		if s.settings == nil {
			p.configured = configuredIs(false, addonsv1.FleetMissingReason, "ConfigMap %s/%s, which holds Fleet's settings, does not exist", FleetNamespace, settingsName)
			return p
		}
		text, err := withServer(s.settings, s.server)
		if err != nil {
			p.configured = configuredIs(false, addonsv1.SettingsBrokenReason, "the installer left ConfigMap %s/%s as it is: %v; repair it, because Fleet cannot read it either", FleetNamespace, settingsName, err)
			return p
		}
		at := types.NamespacedName{Namespace: FleetNamespace, Name: settingsName}
		if p.step, p.configured, p.later = s.overwrite(writeSettings, at, s.settings.Data[settingsKey], text); p.step != rest || p.configured != nil {
			p.text = text
			return p
		}
	}
	switch {
	case s.gates != nil && !s.gatesElsewhere(), s.bootstrap != nil:
		p.configured = configuredIs(false, addonsv1.BelongsToReleaseReason, "feature gates and bootstrapLocalCluster can be set only as values of Fleet's chart, and Muster does not own the release: set helmops.enabled, extraEnv and bootstrap.enabled there")
	case s.serverWanted():
		p.configured = configuredIs(true, addonsv1.ConfiguredOutsideReleaseReason, "%s; written into ConfigMap %s/%s, because Muster does not own the release: put apiServerURL and apiServerCA into its values, or its next upgrade reverts them", s.server.describe(), FleetNamespace, settingsName)
	case s.gatesElsewhere():
		p.configured = configuredIs(true, addonsv1.ConfiguredReason, "the feature gates are in ConfigMap %s", s.gates.configMap)
	}
	return p
}

// gatesStep plans to write the feature gates into the ConfigMap that the user names for them.
func (s *state) gatesStep() (next step, text string, problem *metav1.Condition, later time.Duration) {
	if !s.gatesElsewhere() {
		return rest, "", nil, 0
	}
	if s.gatesProblem != nil {
		return rest, "", configuredIs(false, s.gatesProblem.Reason, "%s", s.gatesProblem.Message), 0
	}
	text, err := withGates(s.gatesMap, s.gates, s.version())
	if err != nil {
		return rest, "", configuredIs(false, addonsv1.FeatureGatesUnwritableReason, "the feature gates are not written into ConfigMap %s: %v", s.gates.configMap, err), 0
	}
	next, problem, later = s.overwrite(writeGates, s.gates.configMap, s.gatesMap.Data[gatesKey], text)
	return next, text, problem, later
}

func (in *server) describe() string {
	switch {
	case in == nil:
		return "no server is set"
	case in.url == "":
		return fmt.Sprintf("agents trust the CA from %s", in.from)
	default:
		return fmt.Sprintf("agents find the management cluster at %s, from %s", in.url, in.from)
	}
}
