package random

import (
	"testing"

	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

var (
	rest, grant, call, initialized = op(quiet, ""), op("FleetGrants", ""), op("AgentCalls", ""), op("Initialize", "")
	noWebhook, killRegistrar       = op("WebhookStop", ""), op("RegistrarKill", "")
	killHelm, deleteWeb            = op("HelmKill", ""), op("DeleteProxy", "")
	byAgent, byManager             = op("Registration", "agent"), op("Registration", "manager")
	noOwners                       = configured(addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)})
	onlyRed                        = configured(addonsv1.ClusterConfig{NamespaceSelector: &namespaceSelectors[1]})
	byConfig                       = configured(addonsv1.ClusterConfig{AgentInitiated: ptr.To(true)})
	classless                      = Step{Op: "CreateCluster", Namespace: theirs, Class: noClass}
	agentInitiated                 = of("Calls", classless)
)

func op(name, value string) Step { return Step{Op: name, Value: value} }

func of(kind string, step Step) Step {
	step.Kind = kind
	return step
}

// slot applies a step to the Cluster in another slot.
func slot(slot int, step Step) Step {
	step.Cluster = slot
	return step
}

func configured(cluster addonsv1.ClusterConfig) Step {
	return Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &cluster}}
}

// playKnown replays runs that once failed and that no integration test covers.
func playKnown(t *testing.T, known map[string][]Step) {
	t.Helper()
	for name, steps := range known {
		t.Run(name, func(t *testing.T) {
			if err := playSteps("known", steps, patience); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKnown replays, without Muster's admission policies, runs in which an attack once succeeded or Muster once
// erred.
func TestKnown(t *testing.T) {
	setUp(t, false, false, false)
	class := Step{Op: "CreateClass", ClassNamespace: lib}
	forge := Step{Op: "TenantCreateFleetCluster", Kind: "ImportedFrom", Value: "wanted", Cluster: 4, ClassNamespace: 1}
	prefixed := Step{Op: "TenantCreateFleetCluster", Kind: "Owner", Value: "prefixed", Cluster: 4, Class: 1, ClassNamespace: 3}
	playKnown(t, map[string][]Step{
		"relabelled under a deselected Cluster": {class, classless, initialized, rest, onlyRed,
			{Op: "TenantForgeFleetCluster", Kind: "Labels", ClassNamespace: lib}, rest},
		"a pin, and a Fleet Cluster of the expected name that nobody's UID is known of": {noWebhook,
			{Op: "TenantCreateCluster", Namespace: theirs, ClassNamespace: ownNamespace, Kind: "Forged"}, of("Annotation", op("Pause", "")),
			{Op: "TenantCreateFleetCluster", Kind: "Notes", Value: "wanted"}, rest},
		"two are made while the syncer is away: one owned by the Cluster, one of the pin's name": {
			{Op: "TenantCreateCluster", Cluster: 4, Namespace: theirs, Class: noClass, ClassNamespace: ownNamespace}, op("SyncerKill", ""), prefixed, forge, rest},
	})
}

// TestKnownAgentInitiated replays, with the registrar, runs in which the registrar once erred.
func TestKnownAgentInitiated(t *testing.T) {
	setUp(t, true, true, false)
	guessed := Step{Op: "ForeignSpec", Kind: fleetClusterKind, Value: `{"spec":{"clientID":"fleet"}}`}
	deleteCluster := op("DeleteCluster", "")
	playKnown(t, map[string][]Step{
		"without a FleetAddonConfig before anybody has checked in": {byConfig, classless, initialized, grant, of("Config", op("Flap", "")), grant, call},
		"made anew, owner references off, and turned to the manager": {noOwners, agentInitiated, grant, call, deleteCluster, agentInitiated, initialized, grant, call,
			byManager, byAgent, grant, call},
		"a clientID that is guessed":  {classless, initialized, rest, guessed, byAgent, grant, call},
		"a pin lost while deselected": {agentInitiated, grant, call, onlyRed, noWebhook, op("DropPin", ""), rest, op("FleetServer", "https://b.example.com")},
		"killed between one step and the next": {agentInitiated, killRegistrar, rest, of("Namespace", op("FleetDeploys", "")), killRegistrar,
			of("Bundle", op("FleetDeploys", "")), killRegistrar, grant, op("RegistrarStop", ""), op("Rotate", "1"), killRegistrar, grant, call},
	})
}

// TestKnownHelm replays what the documentation promises of HelmChartProxies, and runs in which the program once
// erred.
func TestKnownHelm(t *testing.T) {
	setUp(t, true, true, false)
	type chart = addonsv1.HelmChartProxySpec
	named := chart{ChartName: "simple", Version: "1.0.0", ValuesTemplate: "who: {{ .Cluster.metadata.name }}"}
	picky, sourced, everywhere, released := named, named, named, named
	picky.ClusterSelector.MatchLabels = map[string]string{chartLabel: "yes"}
	sourced.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: chartValues}}
	everywhere.NamespaceSelector = &namespaceSelectors[1]
	released.ReleaseName = "release"
	proxy := func(spec chart) Step { return Step{Op: "CreateProxy", Namespace: theirs, Chart: &spec} }
	edit := func(key string, spec chart) Step { return Step{Op: "EditProxy", Key: key, Chart: &spec} }
	newer, missing := edit("version", chart{Version: "1.1.0"}), edit("version", chart{Version: "9.9.9"})
	red := Step{Op: "LabelNamespace", Namespace: theirs, Key: "team", Value: "red"}
	source := of("ConfigMap", Step{Op: "SetSource", Namespace: theirs, Value: "2"})
	selected := func(value string) Step { return Step{Op: "SelectForChart", Key: chartLabel, Value: value} }
	stopGC, startGC := op("StopGC", ""), op("StartGC", "")
	pause, unpause := of("Annotation", op("Pause", "")), of("Annotation", op("Unpause", ""))
	once, renamed := named, edit("release", released)
	once.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce
	installs, hangsUp := op("FleetReleases", ""), of("HangingUp", op("RepositoryFails", ""))
	other := edit("template", chart{ValuesTemplate: "{who: {is: anybody}}"})
	shared, sharedPicky := named, picky
	shared.ReleaseName, sharedPicky.ReleaseName = sharedRelease, sharedRelease
	deployer := edit("account", chart{ServiceAccount: "deployer"})
	second := func(step Step) Step {
		step.Proxy = 2 // By its name it comes before the first.
		return step
	}
	policy := func(value string) Step {
		return Step{Op: "SetPolicy", Kind: "one", Namespace: theirs, Value: value}
	}
	moves, returns := of("Spec", op("Pause", "")), of("Spec", op("Unpause", ""))
	playKnown(t, map[string][]Step{
		"installed before the Fleet Cluster is there, upgraded, deselected and selected again, and deleted while the program is away": {
			proxy(picky), classless, rest, initialized, selected("yes"), rest, newer, rest, selected("no"), rest, selected("yes"), rest,
			killHelm, deleteWeb, rest, proxy(named), rest, stopGC, deleteWeb, rest, proxy(named), rest, startGC, rest},
		"a paused Cluster keeps what is rendered for it": {
			classless, initialized, selected("yes"), proxy(picky), rest,
			pause, edit("template", chart{ValuesTemplate: "infra: {{ .InfraCluster.metadata.name }}"}), rest,
			edit("sources", sourced), rest, source, rest, unpause, rest,
			pause, edit("template", chart{ValuesTemplate: "{who: {is: anybody}}"}), rest, selected("no"), rest, unpause, rest},
		"what is moved keeps its release, and the rest gets another": {
			classless, initialized, slot(1, classless), slot(1, initialized), proxy(named), rest, moves, rest,
			deleteWeb, proxy(released), rest, returns, rest},
		"what is moved keeps its values, those of before, too, when all else goes": {
			classless, initialized, slot(1, classless), slot(1, initialized), proxy(named), rest, other, rest, moves, rest, deleteWeb, rest},
		"a HelmChartProxy is deleted while its Clusters are on the move: the release goes from those that come back": {
			classless, initialized, slot(1, classless), slot(1, initialized), proxy(named), rest, other, rest, moves, slot(1, moves), rest,
			deleteWeb, rest, returns, rest, slot(1, returns), rest},
		"a HelmChartProxy is made anew and deleted while a Cluster is on the move": {
			classless, initialized, proxy(named), rest, moves, rest, deleteWeb, rest, proxy(named), rest, deleteWeb, rest, returns, rest},
		"a release stays until the chart of another one is to be had": {
			classless, initialized, proxy(named), rest, missing, edit("release", released), rest, newer, rest},
		"installed once: nothing changes it, another Cluster gets what is wanted now, and all leave": {
			classless, initialized, slot(1, classless), proxy(once), rest, installs, rest, newer, rest, other, rest, renamed, rest,
			slot(1, initialized), rest, killHelm, rest, selected("no"), edit("selector", picky), rest, selected("yes"), rest, deleteWeb, rest},
		"the repository hangs up: what there is a Bundle of goes on, and the rest when it answers again": {
			classless, initialized, slot(1, classless), proxy(named), rest, installs, hangsUp, rest, other, rest, slot(1, initialized), rest,
			renamed, rest, edit("release", named), rest, newer, rest, op("DeleteCluster", ""), rest, op("RepositoryAnswers", ""), rest},
		"two ask for one release: who has it keeps it, until he is deselected, goes or asks for another": {
			classless, initialized, proxy(shared), rest, second(proxy(shared)), rest, installs, newer, rest,
			edit("selector", picky), rest, edit("selector", named), rest, second(edit("release", released)), rest,
			second(edit("release", shared)), rest, killHelm, deleteWeb, rest, slot(1, classless), slot(1, initialized), rest},
		"of two that ask for one release, each has it on a Cluster": {
			classless, initialized, slot(1, classless), slot(1, initialized), selected("yes"), proxy(sharedPicky), rest, second(proxy(shared)), rest,
			slot(1, selected("yes")), rest, selected("no"), rest, pause, selected("yes"), rest, unpause, rest},
		"a Policy requires a ServiceAccount, allows another, and allows this one": {
			classless, initialized, slot(1, classless), selected("yes"), slot(1, selected("yes")), proxy(picky), rest, installs, policy("require"),
			newer, other, slot(1, initialized), rest, renamed, rest, deployer, rest, policy("other"), newer, edit("template", named), rest,
			selected("no"), rest, policy("deployer"), rest, deleteWeb, rest},
		"a Policy refuses an InstallOnce release that is not installed yet, and leaves one that is": {
			policy("require"), classless, initialized, proxy(once), rest, policy(""), installs, rest, policy("require"), newer, rest, slot(1, classless),
			slot(1, initialized), rest, policy(""), rest, deleteWeb, rest},
		"agents download it, and the manager again; another release, in another namespace": {
			classless, initialized, {Op: "CreateProxy", Namespace: lib, Chart: &everywhere}, rest,
			red, rest, edit("download", chart{Download: addonsv1.DownloadAgent}), killHelm, rest,
			edit("download", named), rest, edit("release", released), rest,
			killHelm, edit("release", named), {Op: "LabelNamespace", Namespace: theirs, Key: "team"}, rest},
	})
}
