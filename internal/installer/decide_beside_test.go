package installer

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// What can be set up beside somebody else's release, and what is said of the rest.
func TestBeside(t *testing.T) {
	theirs := func(settings *corev1.ConfigMap) sight {
		return sight{server: here016, fleet: foreign(released("0.16.0", nil)), crds: foreign(released("0.16.0", nil)), settings: settings}
	}
	set := `{"apiServerURL":"https://here:6443","apiServerCA":"Q0E="}`
	both := gated("rancher-config")
	both.Config.Server = inferring(both).Config.Server
	gates := "extraEnv:\n    - name: OCI_STORAGE\n      value: \"true\"\nhelmops:\n    enabled: true\n"
	onlyServer := addonsv1.FleetAddonConfigSpec{}
	for name, test := range map[string]struct {
		spec  addonsv1.FleetAddonConfigSpec
		sight sight
		want  decided
	}{
		"nothing but an installation": {version("0.16.0"), theirs(settingsOf(`{}`)), decided{installed: "False ForeignRelease"}},
		"only the CRDs are theirs":    {version("0.16.0"), sight{crds: foreign(released("0.16.0", nil)), fleet: released("0.16.0", nil)}, decided{installed: "False ForeignRelease"}},
		"adopted, and yet no release": {version("0.16.0"), sight{settings: settingsOf(`{}`)}.with(func(s *sight) { s.adopt = true }), decided{installed: "False ForeignFleet"}},
		"no settings":                 {inferring(onlyServer), theirs(nil), decided{configured: "False FleetMissing: ConfigMap cattle-fleet-system/fleet-controller"}},
		"no server":                   {inferring(onlyServer), theirs(settingsOf(`{}`)).with(func(s *sight) { s.server, s.serverProblem = nil, &Problem{ReasonServerUnknown, "x"} }), decided{configured: "False ServerUnknown: x"}},
		"broken":                      {inferring(onlyServer), theirs(settingsOf(`{`)), decided{configured: "False SettingsBroken: is left as it is"}},
		"to be set":                   {inferring(onlyServer), theirs(settingsOf(`{}`)), decided{step: writeSettings}},
		"is set":                      {inferring(onlyServer), theirs(settingsOf(set)), decided{configured: "True ConfiguredOutsideRelease: put apiServerURL and apiServerCA into its values"}},
		"taken back": {inferring(onlyServer), theirs(settingsOf(`{}`)).with(func(s *sight) {
			s.writes = map[step]*written{writeSettings: {text: `{"apiServerCA":"Q0E=","apiServerURL":"https://here:6443"}`, at: now.Add(-time.Second), undone: 1}}
		}), decided{later: firstRetry - time.Second, configured: "False SettingsReverted: less and less often"}},
		"gates without a place":     {gated(""), theirs(settingsOf(set)), decided{configured: "False BelongsToRelease: helmops.enabled"}},
		"every right":               {bootstrapping(onlyServer, true), theirs(settingsOf(set)), decided{configured: "False BelongsToRelease: bootstrap.enabled"}},
		"gates elsewhere, to be":    {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *sight) { s.gatesMap = gatesOf("") }), decided{step: writeGates}},
		"gates elsewhere, are":      {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *sight) { s.gatesMap = gatesOf(gates) }), decided{configured: "True Configured: in ConfigMap cattle-system/rancher-config"}},
		"gates elsewhere, unusable": {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *sight) { s.gatesProblem = &Problem{ReasonGatesUnwritable, "not there"} }), decided{configured: "False FeatureGatesUnwritable: not there"}},
		"gates elsewhere, no YAML":  {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *sight) { s.gatesMap = gatesOf("a: [") }), decided{configured: "False FeatureGatesUnwritable: is not YAML"}},
		"both":                      {both, theirs(settingsOf(set)).with(func(s *sight) { s.gatesMap = gatesOf(gates) }), decided{configured: "True ConfiguredOutsideRelease"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.want.check(t, test.sight.asking(t, test.spec))
		})
	}
}

// Of Rancher's nothing is touched but the gates, where they are asked for.
func TestUnderRancher(t *testing.T) {
	gates := "extraEnv:\n    - name: OCI_STORAGE\n      value: \"true\"\nhelmops:\n    enabled: true\n"
	for name, test := range map[string]struct {
		spec  addonsv1.FleetAddonConfigSpec
		sight sight
		want  decided
	}{
		"an installation": {version("0.16.0"), sight{}, decided{installed: "False ManagedByRancher: upgrade Rancher instead"}},
		"handed over":     {version("0.16.0"), sight{fleet: foreign(released("0.15.0", nil))}.with(func(s *sight) { s.adopt = true }), decided{installed: "False ManagedByRancher"}},
		"ours once":       {version("0.16.0"), sight{fleet: released("0.15.0", nil), crds: released("0.15.0", nil)}, decided{installed: "False ManagedByRancher"}},
		"a server":        {inferring(version("0.16.0")), sight{server: here016, settings: settingsOf(`{}`)}, decided{installed: "False ManagedByRancher", configured: "False ConfigureInRancher: server-url and cacerts"}},
		"every right":     {bootstrapping(addonsv1.FleetAddonConfigSpec{}, true), sight{}, decided{configured: "False ConfigureInRancher: server-url"}},
		"gates, no place": {gated(""), sight{}, decided{configured: "False ConfigureInRancher: usually cattle-system/rancher-config"}},
		"gates, to be":    {gated("rancher-config"), sight{gatesMap: gatesOf("a: 1\n")}, decided{step: writeGates}},
		"gates, are":      {gated("rancher-config"), sight{gatesMap: gatesOf(gates)}, decided{configured: "True Configured: from where Rancher takes them"}},
		"gates, no key":   {gated("rancher-config"), sight{gatesMap: &corev1.ConfigMap{}}, decided{configured: "False FeatureGatesUnwritable: has no key fleet"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.sight.asking(t, test.spec)
			s.rancher = true
			test.want.check(t, s)
		})
	}
}
