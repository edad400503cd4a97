package installer

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

var now = time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)

// released returns a release that an installer has deployed.
func released(version string, values map[string]any) *Release {
	parsed := semver.MustParse(version)
	return &Release{Version: parsed, AppVersion: version, Deployed: parsed, Status: StatusDeployed, MadeBy: "run", Values: values}
}

func foreign(r *Release) *Release { r.MadeBy = ""; return r }

func failed(r *Release, serving string) *Release {
	r.Status, r.Deployed = "failed", nil
	if serving != "" {
		r.Deployed = semver.MustParse(serving)
	}
	return r
}

func parsed(versions ...string) (result []*semver.Version) {
	for _, version := range versions {
		result = append(result, semver.MustParse(version))
	}
	return result
}

// offers returns the answer to a look-up, whose key asking sets.
func offers(versions ...string) map[string]*attempt {
	return map[string]*attempt{"": {due: now.Add(2 * time.Hour), offers: parsed(versions...)}}
}

// unanswered returns the failure of a look-up.
func unanswered(err error) map[string]*attempt {
	problem := &Problem{addonsv1.RepositoryUnreachableReason, err.Error()}
	errors.As(err, &problem)
	return map[string]*attempt{"": {due: now.Add(2 * time.Hour), failure: problem}}
}

func text(version *semver.Version) string {
	if version == nil {
		return ""
	}
	return version.String()
}

// asking returns the state with another spec, and keeps the adopt annotation.
func (s state) asking(t *testing.T, spec addonsv1.FleetAddonConfigSpec) *state {
	t.Helper()
	config := &addonsv1.FleetAddonConfig{Spec: spec}
	asked := newState(config)
	if (asked.install != nil) != settings.AsksForInstall(config) {
		t.Errorf("the syncer disagrees whether the installer is needed: %+v", spec)
	}
	s.config, s.install, s.FleetConfig = config, asked.install, asked.FleetConfig
	if answer := s.attempts[""]; answer != nil && s.install != nil {
		s.attempts = maps.Clone(s.attempts)
		s.attempts[s.install.lookup()] = answer
	}
	return &s
}

func version(text string) addonsv1.FleetAddonConfigSpec {
	return addonsv1.FleetAddonConfigSpec{Install: &addonsv1.FleetInstall{Version: ptr.To(text)}}
}

func latest() addonsv1.FleetAddonConfigSpec {
	return addonsv1.FleetAddonConfigSpec{Install: &addonsv1.FleetInstall{FollowLatest: ptr.To(true)}}
}

func inferring(spec addonsv1.FleetAddonConfigSpec) addonsv1.FleetAddonConfigSpec {
	spec.Config = &addonsv1.FleetConfig{Server: &addonsv1.Server{InferLocal: ptr.To(true)}}
	return spec
}

func TestNext(t *testing.T) {
	here := &server{url: "https://here:6443", ca: "CA", from: "somewhere"}
	ours := map[string]any{"apiServerURL": here.url, "apiServerCA": here.ca}
	plain := map[string]any{"bootstrap": map[string]any{"enabled": false}}
	pending := func(r *Release, by, before string, since time.Duration) *Release {
		r.Status, r.MadeBy, r.Before, r.Changed = "pending-upgrade", by, before, now.Add(-since)
		return r
	}
	for name, test := range map[string]struct {
		spec    addonsv1.FleetAddonConfigSpec
		adopt   bool
		state   state
		step    step
		puts    string // the version, if it is not the deployed one
		reason  string // of FleetInstalled
		message string
		config  string // reason of FleetConfigured
	}{
		"nothing asked":        {state: state{fleet: released("0.16.0", nil)}},
		"asks first":           {spec: version("0.16.0"), step: ask},
		"CRDs first":           {spec: version("0.16.0"), state: state{attempts: offers("0.16.0")}, step: putCRDs, puts: "0.16.0", reason: addonsv1.InstallingReason},
		"then Fleet":           {spec: version("0.16.0"), state: state{attempts: offers("0.16.0"), crds: released("0.16.0", nil)}, step: putFleet, puts: "0.16.0", reason: addonsv1.InstallingReason},
		"deployed, no request": {spec: version("v0.16.0"), state: state{crds: released("0.16.0", nil), fleet: released("0.16.0", plain)}, reason: addonsv1.KnownDefectReason},
		"newest of a range":    {spec: version("0.16.x"), state: state{attempts: offers("0.15.9", "0.16.0", "0.16.2", "0.17.0")}, step: putCRDs, puts: "0.16.2", reason: addonsv1.InstallingReason},
		"newest, a release":    {spec: latest(), state: state{attempts: offers("0.16.0", "0.17.0-rc.1")}, step: putCRDs, puts: "0.16.0", reason: addonsv1.InstallingReason},
		"upgrade":              {spec: latest(), state: state{attempts: offers("0.16.0", "0.17.0"), crds: released("0.16.0", nil), fleet: released("0.16.0", plain)}, step: putCRDs, puts: "0.17.0", reason: addonsv1.UpgradingReason},
		"upgrade, then Fleet":  {spec: latest(), state: state{attempts: offers("0.16.0", "0.17.0"), crds: released("0.17.0", nil), fleet: released("0.16.0", plain)}, step: putFleet, puts: "0.17.0", reason: addonsv1.UpgradingReason},
		"newer than offered":   {spec: latest(), state: state{attempts: offers("0.15.0"), crds: released("0.16.0", nil), fleet: released("0.16.0", plain)}, reason: addonsv1.KnownDefectReason},
		"CRDs that are newer":  {spec: version("0.16.0"), state: state{crds: released("0.17.0", nil), fleet: released("0.16.0", plain)}, reason: addonsv1.KnownDefectReason},
		"downgrade":            {spec: version("0.15.0"), state: state{attempts: offers("0.15.0", "0.16.0"), crds: released("0.16.0", nil), fleet: released("0.16.0", plain)}, reason: addonsv1.DowngradeRefusedReason, message: "cannot be downgraded to 0.15.0"},
		"downgrade by a range": {spec: version("0.15.x"), state: state{attempts: offers("0.15.0", "0.16.0"), crds: released("0.16.0", nil), fleet: released("0.16.0", plain)}, reason: addonsv1.DowngradeRefusedReason},
		"unknown version":      {spec: version("0.18.0"), state: state{attempts: offers("0.15.0", "0.16.0")}, reason: addonsv1.VersionUnknownReason, message: "it has 0.16.0, 0.15.0"},
		"unknown, another version deployed": {spec: version("0.18.0"), state: state{attempts: offers("0.16.0"), crds: released("0.16.0", nil), fleet: released("0.16.0", plain)},
			reason: addonsv1.VersionUnknownReason, message: "Fleet 0.16.0 stays"},
		"out of reach, nothing deployed": {spec: latest(), state: state{attempts: unanswered(errTest)}, reason: addonsv1.RepositoryUnreachableReason},
		"out of reach, Fleet deployed": {spec: latest(), state: state{attempts: unanswered(errTest), crds: released("0.16.0", nil), fleet: released("0.16.0", plain)},
			reason: addonsv1.RepositoryUnreachableReason, message: "newer versions cannot be looked up"},
		"refused":                 {spec: latest(), state: state{attempts: unanswered(&Problem{addonsv1.RepositoryRefusedReason, "401"})}, reason: addonsv1.RepositoryRefusedReason},
		"settings into values":    {spec: inferring(version("0.16.0")), state: state{server: here, crds: released("0.16.0", nil), fleet: released("0.16.0", plain)}, step: putFleet},
		"settings, no install":    {spec: inferring(addonsv1.FleetAddonConfigSpec{}), state: state{server: here, crds: released("0.16.0", nil), fleet: released("0.16.0", nil)}, step: putFleet},
		"settings are up to date": {spec: inferring(version("0.16.0")), state: state{server: here, crds: released("0.16.0", nil), fleet: released("0.16.0", ours)}, reason: addonsv1.KnownDefectReason, config: addonsv1.ConfiguredReason},
		"settings do not wait for a repository": {spec: inferring(version("0.17.0")), state: state{server: here, attempts: unanswered(errTest), crds: released("0.16.0", nil), fleet: released("0.16.0", nil)},
			step: putFleet, reason: addonsv1.RepositoryUnreachableReason},
		"no server can be found": {spec: inferring(version("0.16.0")), state: state{serverProblem: &Problem{addonsv1.ServerUnknownReason, "x"}, crds: released("0.16.0", nil), fleet: released("0.16.0", plain)},
			reason: addonsv1.KnownDefectReason, config: addonsv1.ServerUnknownReason},
		"no version":                          {spec: version("newest"), reason: addonsv1.VersionInvalidReason, message: "neither a version nor a range"},
		"no version, Fleet deployed":          {spec: inferring(version("newest")), state: state{server: here, crds: released("0.16.0", nil), fleet: released("0.16.0", ours)}, reason: addonsv1.VersionInvalidReason, message: "Fleet 0.16.0 stays", config: addonsv1.ConfiguredReason},
		"no version, new settings":            {spec: inferring(version("newest")), state: state{server: here, crds: released("0.16.0", nil), fleet: released("0.16.0", nil)}, step: putFleet, reason: addonsv1.VersionInvalidReason},
		"settings without Fleet":              {spec: inferring(addonsv1.FleetAddonConfigSpec{}), state: state{server: here}, config: addonsv1.FleetMissingReason},
		"ours, half done":                     {spec: version("0.16.0"), state: state{crds: released("0.16.0", nil), fleet: pending(released("0.16.0", nil), "b", "a", time.Second)}, step: freeFleet},
		"CRDs, half done":                     {spec: version("0.16.0"), state: state{crds: pending(released("0.16.0", nil), "b", "", time.Second)}, step: freeCRDs},
		"another Helm, just now":              {spec: version("0.16.0"), state: state{crds: released("0.16.0", nil), fleet: pending(released("0.16.0", nil), "a", "a", time.Second)}, reason: addonsv1.HelmBusyReason},
		"another Helm, for a while":           {spec: version("0.16.0"), state: state{crds: released("0.16.0", nil), fleet: pending(released("0.16.0", nil), "a", "a", 59*time.Minute)}, reason: addonsv1.HelmBusyReason, message: "1h0m0s"},
		"another Helm, long ago":              {spec: version("0.16.0"), state: state{crds: released("0.16.0", nil), fleet: pending(released("0.16.0", nil), "a", "a", time.Hour)}, step: freeFleet},
		"failed, nothing runs":                {spec: version("0.16.0"), state: state{attempts: offers("0.16.0"), crds: released("0.16.0", nil), fleet: failed(released("0.16.0", plain), "")}, step: putFleet, puts: "0.16.0", reason: addonsv1.InstallingReason},
		"failed, back to the running version": {spec: version("0.16.0"), state: state{crds: released("0.17.0", nil), fleet: failed(released("0.17.0", plain), "0.16.0")}, step: putFleet},
		"foreign":                             {spec: version("0.16.0"), state: state{fleet: foreign(released("0.15.0", nil))}, reason: addonsv1.ForeignReleaseReason, message: AdoptAnnotation},
		"foreign, adopted":                    {spec: version("0.15.0"), adopt: true, state: state{crds: foreign(released("0.15.0", nil)), fleet: foreign(released("0.15.0", nil)), attempts: offers("0.15.0")}, step: putCRDs, puts: "0.15.0"},
		"no release":                          {spec: version("0.16.0"), state: state{settings: &corev1.ConfigMap{}}, reason: addonsv1.ForeignFleetReason},
		"Rancher's":                           {spec: version("0.16.0"), state: state{rancher: true, fleet: released("0.15.0", nil)}, reason: addonsv1.ManagedByRancherReason},
		"Rancher's, settings":                 {spec: inferring(addonsv1.FleetAddonConfigSpec{}), state: state{rancher: true}, config: addonsv1.ConfigureInRancherReason},
		"foreign, settings":                   {spec: inferring(addonsv1.FleetAddonConfigSpec{}), state: state{server: here, fleet: foreign(released("0.15.0", nil)), settings: settingsOf(`{"a":1}`)}, step: writeSettings},
		"foreign, set up":                     {spec: inferring(addonsv1.FleetAddonConfigSpec{}), state: state{server: here, fleet: foreign(released("0.15.0", nil)), settings: settingsOf(`{"apiServerURL":"https://here:6443","apiServerCA":"Q0E="}`)}, config: addonsv1.ConfiguredOutsideReleaseReason},
		"foreign, broken":                     {spec: inferring(addonsv1.FleetAddonConfigSpec{}), state: state{server: here, fleet: foreign(released("0.15.0", nil)), settings: settingsOf(`{"a":`)}, config: addonsv1.SettingsBrokenReason},
		"foreign, gates":                      {spec: gated(""), state: state{fleet: foreign(released("0.15.0", nil)), settings: settingsOf(`{}`)}, config: addonsv1.BelongsToReleaseReason},
		"Rancher's, gates":                    {spec: gated("rancher-config"), state: state{rancher: true, gatesMap: gatesOf("a: 1\n")}, step: writeGates},
		"Rancher's, no key":                   {spec: gated("rancher-config"), state: state{rancher: true, gatesMap: &corev1.ConfigMap{}}, config: addonsv1.FeatureGatesUnwritableReason},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.state.asking(t, test.spec)
			s.now, s.adopt = now, test.adopt
			p := s.next()
			if p.step != test.step || text(p.version) != test.puts {
				t.Errorf("step %q %s, want %q %s", p.step, text(p.version), test.step, test.puts)
			}
			if test.reason != "" && (p.installed == nil || p.installed.Reason != test.reason || !strings.Contains(p.installed.Message, test.message)) {
				t.Errorf("installed: %+v, want %s: %s", p.installed, test.reason, test.message)
			}
			if test.config != "" && (p.configured == nil || p.configured.Reason != test.config) {
				t.Errorf("configured: %+v, want %s", p.configured, test.config)
			}
			if test.spec.Install == nil && p.installed != nil {
				t.Errorf("no installation was requested: %+v", p.installed)
			}
			if test.spec.Config == nil && p.configured != nil {
				t.Errorf("no settings were requested: %+v", p.configured)
			}
		})
	}
}

func gated(configMap string) addonsv1.FleetAddonConfigSpec {
	gates := &addonsv1.FeatureGates{}
	if configMap != "" {
		gates.ConfigMap = &addonsv1.FeaturesConfigMap{Ref: &corev1.ObjectReference{Namespace: "cattle-system", Name: configMap}}
	}
	return addonsv1.FleetAddonConfigSpec{Config: &addonsv1.FleetConfig{FeatureGates: gates}}
}

func settingsOf(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{settingsKey: text}}
}

func gatesOf(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{gatesKey: text}}
}

// A failed upgrade waits before the next attempt; settings do not.
func TestNextAfterFailure(t *testing.T) {
	here := &server{url: "https://here:6443", ca: "CA", from: "somewhere"}
	plain := map[string]any{"bootstrap": map[string]any{"enabled": false}}
	s := state{
		now: now, attempts: offers("0.16.0", "0.17.0"),
		crds: released("0.17.0", nil), fleet: released("0.16.0", plain),
	}.asking(t, version("0.17.0"))
	s.attempts["deploy Fleet 0.17.0"] = &attempt{due: now.Add(time.Minute), failure: &Problem{Message: "helm says no"}}
	p := s.next()
	if p.step != rest || p.installed.Reason != addonsv1.UpgradeFailedReason || !strings.Contains(p.installed.Message, "Fleet 0.16.0 keeps running; helm says no") {
		t.Errorf("%+v, %+v", p, p.installed)
	}
	s = s.asking(t, inferring(version("0.17.0")))
	s.server = here
	if p := s.next(); p.step != putFleet || p.version != nil || p.installed.Reason != addonsv1.UpgradeFailedReason {
		t.Errorf("settings wait: %+v", p)
	}
	s.now = now.Add(time.Hour)
	if p := s.next(); p.step != putFleet || text(p.version) != "0.17.0" {
		t.Errorf("it is not retried: %+v", p)
	}
}

var errTest = errors.New("out of reach")

// The installer applies some settings to a Fleet that it does not own, and reports the others.
func TestConfigureForeign(t *testing.T) {
	theirs := func(settings *corev1.ConfigMap) state {
		return state{server: here016, fleet: foreign(released("0.16.0", nil)), crds: foreign(released("0.16.0", nil)), settings: settings}
	}
	set := `{"apiServerURL":"https://here:6443","apiServerCA":"Q0E="}`
	both := gated("rancher-config")
	both.Config.Server = inferring(both).Config.Server
	gates := "extraEnv:\n    - name: OCI_STORAGE\n      value: \"true\"\nhelmops:\n    enabled: true\n"
	onlyServer := addonsv1.FleetAddonConfigSpec{}
	for name, test := range map[string]struct {
		spec  addonsv1.FleetAddonConfigSpec
		state state
		want  decided
	}{
		"only an installation":           {version("0.16.0"), theirs(settingsOf(`{}`)), decided{installed: "False ForeignRelease"}},
		"only the CRDs are theirs":       {version("0.16.0"), state{crds: foreign(released("0.16.0", nil)), fleet: released("0.16.0", nil)}, decided{installed: "False ForeignRelease"}},
		"adopted, but without a release": {version("0.16.0"), state{settings: settingsOf(`{}`)}.with(func(s *state) { s.adopt = true }), decided{installed: "False ForeignFleet"}},
		"no settings":                    {inferring(onlyServer), theirs(nil), decided{configured: "False FleetMissing: ConfigMap cattle-fleet-system/fleet-controller"}},
		"no server":                      {inferring(onlyServer), theirs(settingsOf(`{}`)).with(func(s *state) { s.server, s.serverProblem = nil, &Problem{addonsv1.ServerUnknownReason, "x"} }), decided{configured: "False ServerUnknown: x"}},
		"broken":                         {inferring(onlyServer), theirs(settingsOf(`{`)), decided{configured: "False SettingsBroken: the installer left ConfigMap"}},
		"to be set":                      {inferring(onlyServer), theirs(settingsOf(`{}`)), decided{step: writeSettings}},
		"is set":                         {inferring(onlyServer), theirs(settingsOf(set)), decided{configured: "True ConfiguredOutsideRelease: put apiServerURL and apiServerCA into its values"}},
		"taken back": {inferring(onlyServer), theirs(settingsOf(`{}`)).with(func(s *state) {
			s.attempts = map[string]*attempt{string(writeSettings): {text: `{"apiServerCA":"Q0E=","apiServerURL":"https://here:6443"}`, due: now.Add(time.Second)}}
		}), decided{configured: "False SettingsReverted: at growing intervals"}},
		"gates without a place":     {gated(""), theirs(settingsOf(set)), decided{configured: "False BelongsToRelease: helmops.enabled"}},
		"every right":               {bootstrapping(onlyServer, true), theirs(settingsOf(set)), decided{configured: "False BelongsToRelease: bootstrap.enabled"}},
		"gates elsewhere, not set":  {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *state) { s.gatesMap = gatesOf("") }), decided{step: writeGates}},
		"gates elsewhere, set":      {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *state) { s.gatesMap = gatesOf(gates) }), decided{configured: "True Configured: in ConfigMap cattle-system/rancher-config"}},
		"gates elsewhere, unusable": {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *state) { s.gatesProblem = &Problem{addonsv1.FeatureGatesUnwritableReason, "not there"} }), decided{configured: "False FeatureGatesUnwritable: not there"}},
		"gates elsewhere, not YAML": {gated("rancher-config"), theirs(settingsOf(set)).with(func(s *state) { s.gatesMap = gatesOf("a: [") }), decided{configured: "False FeatureGatesUnwritable: is not YAML"}},
		"both":                      {both, theirs(settingsOf(set)).with(func(s *state) { s.gatesMap = gatesOf(gates) }), decided{configured: "True ConfiguredOutsideRelease"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.want.check(t, test.state.asking(t, test.spec))
		})
	}
}

// With Rancher's Fleet, the installer changes only the feature gates, if asked.
func TestUnderRancher(t *testing.T) {
	gates := "extraEnv:\n    - name: OCI_STORAGE\n      value: \"true\"\nhelmops:\n    enabled: true\n"
	for name, test := range map[string]struct {
		spec  addonsv1.FleetAddonConfigSpec
		state state
		want  decided
	}{
		"an installation": {version("0.16.0"), state{}, decided{installed: "False ManagedByRancher: upgrade Rancher instead"}},
		"handed over":     {version("0.16.0"), state{fleet: foreign(released("0.15.0", nil))}.with(func(s *state) { s.adopt = true }), decided{installed: "False ManagedByRancher"}},
		"ours once":       {version("0.16.0"), state{fleet: released("0.15.0", nil), crds: released("0.15.0", nil)}, decided{installed: "False ManagedByRancher"}},
		"a server":        {inferring(version("0.16.0")), state{server: here016, settings: settingsOf(`{}`)}, decided{installed: "False ManagedByRancher", configured: "False ConfigureInRancher: server-url and cacerts"}},
		"every right":     {bootstrapping(addonsv1.FleetAddonConfigSpec{}, true), state{}, decided{configured: "False ConfigureInRancher: server-url"}},
		"gates, no place": {gated(""), state{}, decided{configured: "False ConfigureInRancher: usually cattle-system/rancher-config"}},
		"gates, not set":  {gated("rancher-config"), state{gatesMap: gatesOf("a: 1\n")}, decided{step: writeGates}},
		"gates, are":      {gated("rancher-config"), state{gatesMap: gatesOf(gates)}, decided{configured: "True Configured: from where Rancher takes them"}},
		"gates, no key":   {gated("rancher-config"), state{gatesMap: &corev1.ConfigMap{}}, decided{configured: "False FeatureGatesUnwritable: has no key fleet"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.state.asking(t, test.spec)
			s.rancher = true
			test.want.check(t, s)
		})
	}
}
