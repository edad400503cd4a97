package installer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
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
	// text is the new value of a key of an object.
	text, key string
	object    *corev1.ConfigMap
	// installed and configured are reported when no step is left, and before a step that takes long.
	installed, configured *metav1.Condition
}

// chart names the chart whose release the step changes.
func (p *plan) chart() string {
	if p.step == putCRDs || p.step == freeCRDs {
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

func (p *Problem) configured() *metav1.Condition {
	return configuredIs(false, p.Reason, "%s", p.Message)
}

// owner is a row of the table of steps. The first step that is not done is next; the last reports what there is. A step
// returns nil if it is done.
type owner struct {
	isIt  func(*state) bool
	steps []func(*state) *plan
	// reason and text say why the installer leaves the installation unchanged; they are empty if it does not.
	reason, text string
}

// owners lists who may own the Fleet in the cluster. The first whose isIt returns true owns it.
var owners = []owner{{
	isIt:   func(s *state) bool { return s.rancher },
	steps:  []func(*state) *plan{(*state).gatesElsewhere, (*state).byHand},
	reason: addonsv1.ManagedByRancherReason,
	text:   "Rancher installs Fleet here (Deployment cattle-system/rancher) and the installer left it unchanged; remove spec.install, and upgrade Rancher instead",
}, {
	isIt: func(s *state) bool {
		return !s.adopt && (s.fleet != nil && !s.fleet.isOurs() || s.crds != nil && !s.crds.isOurs())
	},
	steps:  []func(*state) *plan{(*state).gatesElsewhere, (*state).serverElsewhere, (*state).foreign},
	reason: addonsv1.ForeignReleaseReason,
	text:   "Fleet is installed here by Helm releases that Muster does not own, and the installer left them unchanged; upgrade them with Helm and remove spec.install, or hand them over with the annotation " + AdoptAnnotation + ": \"true\" on this FleetAddonConfig",
}, {
	isIt:   func(s *state) bool { return s.fleet == nil && s.crds == nil && s.settings != nil },
	steps:  []func(*state) *plan{(*state).gatesElsewhere, (*state).serverElsewhere, (*state).foreign},
	reason: addonsv1.ForeignFleetReason,
	text:   "Fleet is installed here without a Helm release, and the installer left it unchanged; remove spec.install, or uninstall that Fleet but keep its CRDs",
}, { // It is the installer's own, or there is none.
	isIt:  func(*state) bool { return true },
	steps: []func(*state) *plan{(*state).missing, (*state).free, (*state).deploy},
}}

// next returns the next step.
func (s *state) next() plan {
	if s.isNothing() {
		return plan{}
	}
	its := owners[slices.IndexFunc(owners, func(row owner) bool { return row.isIt(s) })]
	var p *plan
	for i := 0; p == nil; i++ {
		p = its.steps[i](s)
	}
	if its.reason != "" {
		p.installed = installedIs(false, its.reason, "%s", its.text)
	}
	// With spec.install.mode: Plan, a condition announces the step.
	if s.planOnly() && p.step != rest && p.step != ask {
		const format = "the next step would be to %s; set spec.install.mode to Apply to take it"
		p = &plan{installed: cmp.Or(p.installed, installedIs(false, addonsv1.PlannedReason, format, p.step)), configured: configuredIs(false, addonsv1.PlannedReason, format, p.step)}
	}
	if s.install == nil {
		p.installed = nil
	}
	if !s.asksForSettings() {
		p.configured = nil
	}
	return *p
}

func (s *state) planOnly() bool { return s.install != nil && s.install.planOnly }

// gatesElsewhere writes the feature gates into the ConfigMap that the user names for them.
func (s *state) gatesElsewhere() *plan {
	at := s.gatesIn()
	switch {
	case at.Name == "":
		return nil
	case s.gatesProblem != nil:
		return &plan{configured: s.gatesProblem.configured()}
	}
	text, err := withGates(s.gatesMap, s.FeatureGates, s.version())
	if err != nil {
		return &plan{configured: configuredIs(false, addonsv1.FeatureGatesUnwritableReason, "the feature gates are not written into ConfigMap %s: %v", at, err)}
	}
	return s.overwrite(writeGates, s.gatesMap, gatesKey, text)
}

// serverElsewhere writes the server into the settings of a Fleet that the installer does not own.
func (s *state) serverElsewhere() *plan {
	at := types.NamespacedName{Namespace: FleetNamespace, Name: settingsName}
	switch {
	case s.serverProblem != nil:
		return &plan{configured: s.serverProblem.configured()}
	case s.Server == nil:
		return nil
	case s.settings == nil:
		return &plan{configured: configuredIs(false, addonsv1.FleetMissingReason, "ConfigMap %s, which holds Fleet's settings, does not exist", at)}
	}
	text, err := withServer(s.settings, s.server)
	if err != nil {
		return &plan{configured: configuredIs(false, addonsv1.SettingsBrokenReason, "the installer left ConfigMap %s as it is: %v; repair it, because Fleet cannot read it either", at, err)}
	}
	return s.overwrite(writeSettings, s.settings, settingsKey, text)
}

// foreign reports what is configured in a Fleet that the installer does not own.
func (s *state) foreign() *plan {
	p := &plan{}
	at := s.gatesIn()
	switch {
	case s.FeatureGates != nil && at.Name == "", s.BootstrapLocalCluster != nil:
		p.configured = configuredIs(false, addonsv1.BelongsToReleaseReason, "feature gates and bootstrapLocalCluster can be set only as values of Fleet's chart, and Muster does not own the release: set helmops.enabled, extraEnv and bootstrap.enabled there")
	case s.Server != nil:
		p.configured = configuredIs(true, addonsv1.ConfiguredOutsideReleaseReason, "%s; written into ConfigMap %s/%s, because Muster does not own the release: put apiServerURL and apiServerCA into its values, or its next upgrade reverts them", s.server.describe(), FleetNamespace, settingsName)
	case at.Name != "":
		p.configured = configuredIs(true, addonsv1.ConfiguredReason, "the feature gates are in ConfigMap %s", at)
	}
	return p
}

// byHand reports what the user must configure in Rancher.
func (s *state) byHand() *plan {
	switch at := s.gatesIn(); {
	case s.Server != nil || s.BootstrapLocalCluster != nil:
		return &plan{configured: configuredIs(false, addonsv1.ConfigureInRancherReason, "Rancher configures Fleet here (Deployment cattle-system/rancher) and the installer left it unchanged; set server-url and cacerts in Rancher, and remove spec.config.server")}
	case at.Name == "":
		return &plan{configured: configuredIs(false, addonsv1.ConfigureInRancherReason, "Rancher configures Fleet here; name its ConfigMap in spec.config.featureGates.configMap.ref, usually cattle-system/rancher-config")}
	default:
		return &plan{configured: configuredIs(true, addonsv1.ConfiguredReason, "the feature gates are in ConfigMap %s, from where Rancher takes them", at)}
	}
}

// overwrite writes a text into a ConfigMap that the installer does not own. If another program keeps reverting the
// text, the installer slows down, and reports that until the text has stood for as long as the installer would wait.
func (s *state) overwrite(kind step, object *corev1.ConfigMap, key, text string) *plan {
	switch last := s.attempts[string(kind)]; {
	case last != nil && last.text == text && !last.isDue(s.now):
		return &plan{configured: configuredIs(false, addonsv1.SettingsRevertedReason,
			"another program keeps reverting the installer's settings in ConfigMap %s; put them into the release or repository that the ConfigMap comes from, or remove the key there; the installer retries at growing intervals of up to %s", types.NamespacedName{Namespace: object.Namespace, Name: object.Name}, lastRetry)}
	case object.Data[key] == text:
		return nil
	default:
		return &plan{step: kind, object: object, key: key, text: text}
	}
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
