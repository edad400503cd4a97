package installer

import (
	"cmp"
	"fmt"
	"time"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// step is one thing to do, after which everything is observed again.
type step string

const (
	rest          step = ""
	ask           step = "ask the repository"
	makeRoom      step = "make the namespace"
	freeCRDs      step = "free the release of the CRDs"
	freeFleet     step = "free the release"
	putCRDs       step = "put the CRDs"
	putFleet      step = "put Fleet"
	writeSettings step = "write the settings"
	writeGates    step = "write the feature gates"
)

// plan is what is to be done next, and what to report if that is nothing.
type plan struct {
	step step
	// version is the one to put; nil keeps the chart that is deployed.
	version *semver.Version
	// archive is the chart of that version, once it has been fetched.
	archive []byte
	values  map[string]any
	text    string
	// conditions are reported when nothing is left to do, and before a step that takes long.
	installed, configured *metav1.Condition
	// later is when to observe again at the latest; zero leaves it to the usual interval.
	later time.Duration
}

// chart is that of the release that is put.
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
	return condition(InstalledCondition, holds, reason, format, args...)
}

func configuredIs(holds bool, reason, format string, args ...any) *metav1.Condition {
	return condition(ConfiguredCondition, holds, reason, format, args...)
}

// next returns what to do next.
func (s *state) next() plan {
	var p plan
	if s.isNothing() {
		return p
	}
	switch s.owner() {
	case ranchers:
		p = s.underRancher()
	case unmanaged:
		p = s.beside(installedIs(false, ReasonForeignFleet, "a Fleet is here that no Helm release stands for, and nothing of it was touched; remove spec.install, or remove that Fleet but for its CRDs"))
	case theirs:
		if !s.adopt {
			p = s.beside(installedIs(false, ReasonForeignRelease, "the Helm releases of Fleet here are somebody else's, and nothing of them was touched; upgrade them with Helm and remove spec.install, or hand them over with the annotation %s: \"true\" on this FleetAddonConfig", AdoptAnnotation))
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

// shown says of a step that it would be taken, where nothing is to be done.
func (s *state) shown(p plan) plan {
	if s.install == nil || !s.install.planOnly || p.step == rest || p.step == ask {
		return p
	}
	const format = "to %s would come next; spec.install.mode: Apply does it"
	return plan{
		installed:  cmp.Or(p.installed, installedIs(false, ReasonPlanned, format, p.step)),
		configured: configuredIs(false, ReasonPlanned, format, p.step),
	}
}

// underRancher leaves everything to Rancher, but for the gates in the ConfigMap that is named.
func (s *state) underRancher() plan {
	p := plan{
		installed: installedIs(false, ReasonManagedByRancher, "Rancher installs Fleet here (Deployment cattle-system/rancher) and nothing of it was touched; remove spec.install, and upgrade Rancher instead"),
	}
	var problem *metav1.Condition
	p.step, p.text, problem, p.later = s.gatesStep()
	switch {
	case problem != nil:
		p.configured = problem
	case p.step != rest: // The result is reported.
	case s.serverWanted() || s.bootstrap != nil:
		p.configured = configuredIs(false, ReasonConfigureByHand, "Rancher configures Fleet here (Deployment cattle-system/rancher) and nothing of it was touched; set server-url and cacerts in Rancher, and remove spec.config.server")
	case !s.gatesElsewhere():
		p.configured = configuredIs(false, ReasonConfigureByHand, "Rancher configures Fleet here; name its ConfigMap in spec.config.featureGates.configMap.ref, usually cattle-system/rancher-config")
	default:
		p.configured = configuredIs(true, ReasonConfigured, "the feature gates are in ConfigMap %s, from where Rancher takes them", s.gates.configMap)
	}
	return p
}

func (w *wanted) serverWanted() bool { return w.server != nil }

// gatesElsewhere reports whether the gates are wanted in a ConfigMap that is named.
func (s *state) gatesElsewhere() bool { return s.gates != nil && s.gates.configMap.Name != "" }

func (w *wanted) asksForSettings() bool {
	return w.serverWanted() || w.gates != nil || w.bootstrap != nil
}

// beside sets up a Fleet that somebody else has installed, where that can be done beside
// its release.
func (s *state) beside(installed *metav1.Condition) plan {
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
			p.configured = configuredIs(false, ReasonFleetMissing, "ConfigMap %s/%s, which holds Fleet's settings, is not there", FleetNamespace, settingsName)
			return p
		}
		text, err := withServer(s.settings, s.server)
		if err != nil {
			p.configured = configuredIs(false, ReasonSettingsBroken, "ConfigMap %s/%s is left as it is: %v; repair it, Fleet cannot read it either", FleetNamespace, settingsName, err)
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
		p.configured = configuredIs(false, ReasonBelongsToRelease, "feature gates and bootstrapLocalCluster can be set only as values of Fleet's chart, and the release is somebody else's: set helmops.enabled, extraEnv and bootstrap.enabled there")
	case s.serverWanted():
		p.configured = configuredIs(true, ReasonConfiguredForNow, "%s; written into ConfigMap %s/%s, as the release is somebody else's: put apiServerURL and apiServerCA into its values, or its next upgrade takes them back", s.server.describe(), FleetNamespace, settingsName)
	case s.gatesElsewhere():
		p.configured = configuredIs(true, ReasonConfigured, "the feature gates are in ConfigMap %s", s.gates.configMap)
	}
	return p
}

// gatesStep brings the gates into the ConfigMap that is named for them.
func (s *state) gatesStep() (next step, text string, problem *metav1.Condition, later time.Duration) {
	if !s.gatesElsewhere() {
		return rest, "", nil, 0
	}
	if s.gatesProblem != nil {
		return rest, "", configuredIs(false, s.gatesProblem.Reason, "%s", s.gatesProblem.Message), 0
	}
	text, err := withGates(s.gatesMap, s.gates, s.version())
	if err != nil {
		return rest, "", configuredIs(false, ReasonGatesUnwritable, "the feature gates are not written into ConfigMap %s: %v", s.gates.configMap, err), 0
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
