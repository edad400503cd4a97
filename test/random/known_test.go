package random

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// The tenant's namespace, and one that is not his.
const (
	theirs = namespaceCount - 1
	lib    = 0
)

// TestKnown plays, with our admission policies taken away, what once worked for those
// who attacked Muster and what once confused it.
func TestKnown(t *testing.T) {
	if err := withRegistrar(false); err != nil {
		t.Fatal(err)
	}
	restore, err := withPolicies(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
	config := func(cluster addonsv1.ClusterConfig) Step {
		return Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &cluster}}
	}
	noOwners := config(addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)})
	onlyRed := config(addonsv1.ClusterConfig{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}}})
	rest := Step{Op: quiet}
	class := Step{Op: "CreateClass", ClassNamespace: lib}
	ownClass := Step{Op: "CreateClass", ClassNamespace: theirs}
	create := Step{Op: "CreateCluster", Namespace: theirs, ClassNamespace: lib}
	classless := Step{Op: "CreateCluster", Namespace: theirs, Class: noClass}
	initialize := Step{Op: "Initialize"}
	forge := func(kind string) Step {
		return Step{Op: "TenantCreateFleetCluster", Kind: kind, Value: "mine", ClassNamespace: lib}
	}

	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"point 1: a released Fleet Cluster made by hand", []Step{class, forge("Released"), rest}},
		{"point 1: a Fleet Cluster made by hand from a Cluster", []Step{class, classless, forge("ImportedFrom"), rest}},
		{"point 1: a Fleet Cluster of ours relabelled", []Step{class, classless, initialize, rest,
			{Op: "TenantForgeFleetCluster", Kind: "Labels", ClassNamespace: lib}, rest}},
		{"point 1: relabelled under a deselected Cluster", []Step{class, classless, initialize, rest, onlyRed,
			{Op: "TenantForgeFleetCluster", Kind: "Labels", ClassNamespace: lib}, rest}},
		{"point 2: a pin on an unselected Cluster", []Step{class, onlyRed, create, rest, {Op: "TenantForgePin", Value: "forged"}, rest}},
		{"point 2: with the webhook down", []Step{class, onlyRed, create, rest, {Op: "WebhookStop"}, {Op: "TenantForgePin", Value: "forged"}, rest}},
		{"point 5: adopt goes off", []Step{ownClass, {Op: "TenantCreateFleetCluster", Kind: "Adopt", Value: "wanted", ClassNamespace: lib},
			{Op: "TenantCreateCluster", Namespace: theirs, ClassNamespace: ownNamespace}, initialize, rest}},
		{"point 9: made anew, the garbage collector stopped", []Step{class, create, initialize, rest, {Op: "StopGC"}, {Op: "DeleteCluster"}, create, rest,
			initialize, rest, {Op: "StartGC"}, rest}},
		{"point 9: made anew at once", []Step{class, create, initialize, rest, {Op: "DeleteCluster"}, create, rest, initialize, rest}},
		{"point 9: made anew, owner references off", []Step{class, noOwners, create, initialize, rest, {Op: "DeleteCluster"}, create, rest, initialize, rest}},
		{"point 10: an altered pin", []Step{class, create, initialize, rest, {Op: "WebhookStop"}, {Op: "DropPin", Value: "forged"}, rest}},
		{"point 10: a pin, and a Fleet Cluster of the expected name that nobody's UID is known of", []Step{{Op: "WebhookStop"},
			{Op: "TenantCreateCluster", Namespace: theirs, ClassNamespace: ownNamespace, Kind: "Forged"}, {Op: "Pause", Kind: "Annotation"},
			{Op: "TenantCreateFleetCluster", Kind: "Notes", Value: "wanted"}, rest}},
		{"point 10: two are made while the syncer is away: one owned by the Cluster, one of the pin's name", []Step{
			{Op: "TenantCreateCluster", Cluster: 4, Namespace: theirs, Class: 3, ClassNamespace: ownNamespace}, {Op: "SyncerKill"},
			{Op: "TenantCreateFleetCluster", Cluster: 4, Class: 1, ClassNamespace: 3, Kind: "Owner", Value: "prefixed"},
			{Op: "TenantCreateFleetCluster", Cluster: 4, ClassNamespace: 1, Kind: "ImportedFrom", Value: "wanted"}, rest}},
		{"point 16: a class of the name of a group", []Step{class, create, initialize, rest,
			{Op: "CreateDisplacing", Kind: "Displacing", Namespace: theirs, ClassNamespace: lib}, rest}},
		{"point 21: a pin lost while deselected", []Step{class, create, initialize, rest, onlyRed, {Op: "WebhookStop"}, {Op: "DropPin"}, rest}},
		{"point 22: keys of ours that nobody wants", []Step{classless, initialize, rest,
			{Op: "ForeignLabel", Kind: fleetClusterKind, Key: nameLabel, Value: "theirs"}, rest}},
		{"point 22: on a group", []Step{class, create, initialize, rest,
			{Op: "ForeignLabel", Kind: classGroupKind, ClassNamespace: lib, Key: domain + "/released", Value: "theirs"}, rest}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("known%d", tries), known.steps, patience/2, true); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKnownCalls plays, with the registrar, what docs/guides/nat.md promises of changes, and what
// once confused it.
func TestKnownCalls(t *testing.T) {
	if err := withRegistrar(true); err != nil {
		t.Fatal(err)
	}
	op := func(name, kind, value string) Step { return Step{Op: name, Kind: kind, Value: value} }
	create := Step{Op: "CreateCluster", Namespace: theirs, Class: noClass, Kind: "Calls"}
	unmarked := Step{Op: "CreateCluster", Namespace: theirs, Class: noClass}
	rest, grant, call, initialize := op(quiet, "", ""), op("FleetGrants", "", ""), op("AgentCalls", "", ""), op("Initialize", "", "")
	agent, manager := op("Registration", "", "agent"), op("Registration", "", "manager")
	none := Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Selector: &selectors[1]}}}
	byConfig := Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{AgentInitiated: ptr.To(true)}}}
	noOwners := Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)}}}
	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"rotated", []Step{create, grant, call, op("Rotate", "", "1"), grant, op("Rotate", "", ""), op("Rotate", "", "2"), grant}},
		{"lost", []Step{create, grant, op("ChangeManifest", "Delete", ""), op("ChangeManifest", "Edit", ""), op("LoseCredential", "", ""), op("FleetServer", "", "https://b.example.com"),
			op("ChangeManifest", "Delete", "")}},
		{"turned over for a moment", []Step{create, initialize, grant, op("Flap", "Annotation", "at rest"), call, op("Flap", "Annotation", ""), op("Flap", "Annotation", "at rest"), grant, call}},
		{"without a FleetAddonConfig for a moment", []Step{byConfig, unmarked, initialize, grant, call, op("Flap", "Flag", "at rest"), op("Flap", "Selector", ""), op("Flap", "Config", ""), grant, call}},
		{"without one before anybody has called", []Step{byConfig, unmarked, initialize, grant, op("Flap", "Config", ""), grant, call}},
		{"rotated, turned to the manager, who installs one, and back", []Step{create, initialize, grant, call, op("Rotate", "", "1"), grant, manager, op("FleetInstalls", "", ""), agent, rest, op("Rotate", "", "2"), grant, call}},
		{"turned to the manager and back", []Step{create, initialize, grant, call, manager, agent, grant, call}},
		{"turned to the manager, who installs one, and back", []Step{create, initialize, grant, manager, op("FleetInstalls", "", ""), agent, op("Rotate", "", "1"), grant, call}},
		{"made anew", []Step{create, grant, call, {Op: "DeleteCluster"}, create, rest, grant, call}},
		{"made anew, owner references off", []Step{noOwners, create, grant, call, {Op: "DeleteCluster"}, create, rest, grant, call}},
		{"made anew, owner references off, and turned to the manager", []Step{noOwners, create, grant, call, {Op: "DeleteCluster"}, create, initialize, grant, call,
			manager, agent, grant, call}},
		{"a clientID that is guessed", []Step{unmarked, initialize, rest, {Op: "ForeignSpec", Kind: fleetClusterKind, Value: `{"spec":{"clientID":"fleet"}}`}, agent, grant, call}},
		{"a pin lost while deselected", []Step{create, grant, call, none, {Op: "WebhookStop"}, {Op: "DropPin"}, rest, op("FleetServer", "", "https://b.example.com")}},
		{"killed between one step and the next", []Step{create, op("RegistrarKill", "", ""), rest, op("FleetDeploys", "Namespace", ""), op("RegistrarKill", "", ""),
			op("FleetDeploys", "Bundle", ""), op("RegistrarKill", "", ""), grant, op("RegistrarStop", "", ""), op("Rotate", "", "1"), op("RegistrarKill", "", ""), grant, call}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("calls%d", tries), known.steps, patience, true); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKnownCharts plays what is promised of HelmChartProxies, and what once confused the program.
func TestKnownCharts(t *testing.T) {
	cluster := Step{Op: "CreateCluster", Namespace: theirs, Class: noClass}
	initialize, rest, kill := Step{Op: "Initialize"}, Step{Op: quiet}, Step{Op: "ChartsKill"}
	proxy := func(spec addonsv1.HelmChartProxySpec) Step {
		spec.ChartName = "simple"
		return Step{Op: "CreateProxy", Namespace: theirs, Chart: &spec}
	}
	second := func(step Step) Step {
		step.Cluster = 1
		return step
	}
	dotted := func(step Step) Step { // Its name is no name for a release.
		step.Proxy = 2
		return step
	}
	edit := func(key string, spec addonsv1.HelmChartProxySpec) Step {
		return Step{Op: "EditProxy", Key: key, Chart: &spec}
	}
	yes := metav1.LabelSelector{MatchLabels: map[string]string{chartLabel: "yes"}}
	selected := func(value string) Step { return Step{Op: "SelectForChart", Key: chartLabel, Value: value} }
	named := addonsv1.HelmChartProxySpec{Version: "1.0.0", ValuesTemplate: "who: {{ .Cluster.metadata.name }}"}
	picky := addonsv1.HelmChartProxySpec{Version: "1.0.0", ClusterSelector: yes, ValuesTemplate: named.ValuesTemplate}
	of := func(change func(*addonsv1.HelmChartProxySpec)) addonsv1.HelmChartProxySpec {
		spec := named
		change(&spec)
		return spec
	}
	static := of(func(s *addonsv1.HelmChartProxySpec) { s.ValuesTemplate = "who: anybody" })
	infra := of(func(s *addonsv1.HelmChartProxySpec) { s.ValuesTemplate = "infra: {{ .InfraCluster.metadata.name }}" })
	otherwise := of(func(s *addonsv1.HelmChartProxySpec) { s.ValuesTemplate = "{who: {is: anybody}}" })
	fails := of(func(s *addonsv1.HelmChartProxySpec) {
		s.ValuesTemplate = `{{ if eq .Cluster.metadata.name "one" }}{{ fail "no" }}{{ end }}who: {{ .Cluster.metadata.name }}`
	})
	newer, missing := of(func(s *addonsv1.HelmChartProxySpec) { s.Version = "1.1.0" }), of(func(s *addonsv1.HelmChartProxySpec) { s.Version = "9.9.9" })
	agent := of(func(s *addonsv1.HelmChartProxySpec) { s.Download = addonsv1.DownloadAgent })
	released := of(func(s *addonsv1.HelmChartProxySpec) { s.ReleaseName = "release" })
	everywhere := of(func(s *addonsv1.HelmChartProxySpec) {
		s.ChartName, s.NamespaceSelector = "simple", &namespaceSelectors[1]
	})
	sourcedBy := of(func(s *addonsv1.HelmChartProxySpec) {
		s.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: chartValues}}
	})
	secretly := of(func(s *addonsv1.HelmChartProxySpec) {
		s.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: chartValues}}
	})
	source := func(value string) Step {
		return Step{Op: "SetSource", Namespace: theirs, Kind: "ConfigMap", Value: value}
	}
	secret := func(value string) Step { return Step{Op: "SetSource", Namespace: theirs, Kind: "Secret", Value: value} }
	pause, unpause := Step{Op: "Pause", Kind: "Annotation"}, Step{Op: "Unpause", Kind: "Annotation"}
	moves, stays := Step{Op: "Pause", Kind: "Spec"}, Step{Op: "Unpause", Kind: "Spec"}
	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"installed before the Fleet Cluster is there, upgraded, deselected and selected again, and deleted while the program is away", []Step{
			proxy(picky), cluster, rest, initialize, selected("yes"), rest, edit("version", newer), rest, selected("no"), rest, selected("yes"), rest,
			kill, {Op: "DeleteProxy"}, rest, proxy(named), rest, {Op: "StopGC"}, {Op: "DeleteProxy"}, rest, proxy(named), rest, {Op: "StartGC"}, rest}},
		{"deselected while the values cannot be read", []Step{
			secret("2"), cluster, initialize, selected("yes"), proxy(of(func(s *addonsv1.HelmChartProxySpec) { *s = secretly; s.ClusterSelector = yes })), rest,
			secret(""), rest, selected("no"), rest}},
		{"one of two deselected while the values cannot be read", []Step{
			secret("2"), cluster, initialize, selected("yes"), second(cluster), second(initialize), second(selected("yes")),
			proxy(of(func(s *addonsv1.HelmChartProxySpec) { *s = secretly; s.ClusterSelector = yes })), rest,
			secret(""), rest, second(selected("no")), rest, selected("no"), rest, secret("1"), rest, second(selected("yes")), rest}},
		{"deleted, under a name that is shortened, the garbage collector stopped", []Step{
			dotted(proxy(named)), cluster, initialize, rest, {Op: "StopGC"}, dotted(Step{Op: "DeleteProxy"}), rest, {Op: "StartGC"}, rest}},
		{"a paused Cluster keeps what is rendered for it", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, pause, edit("template", infra), rest, edit("sources", sourcedBy), rest,
			source("2"), rest, unpause, rest, pause, edit("template", otherwise), rest, selected("no"), rest, unpause, rest}},
		{"what is moved stays", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, moves, rest, selected("no"), rest, stays, rest}},
		{"what is moved stays, and of the rest nothing, when it is deleted", []Step{cluster, initialize, second(cluster), second(initialize), proxy(named), rest, moves, rest,
			{Op: "ChartsStop"}, {Op: "DeleteProxy"}, rest, proxy(named), stays, rest}},
		{"what is moved keeps its release, and the rest gets another", []Step{cluster, initialize, second(cluster), second(initialize), proxy(named), rest, moves, rest,
			{Op: "DeleteProxy"}, proxy(released), rest, stays, rest}},
		{"a release stays until the chart of another one is to be had", []Step{cluster, initialize, proxy(named), rest, edit("version", missing), edit("release", released), rest,
			edit("version", newer), rest}},
		{"what is not to be had holds the rest", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, edit("version", missing), rest, selected("no"), rest, selected("yes"), rest,
			edit("version", named), rest, edit("sources", secretly), rest, secret(""), rest, secret("2"), rest}},
		{"a template that fails", []Step{cluster, initialize, proxy(named), rest, edit("template", fails), rest, edit("version", newer), rest, edit("template", static), rest}},
		{"agents download it, and the manager again; another release, in another namespace", []Step{cluster, initialize, {Op: "CreateProxy", Namespace: lib, Chart: &everywhere}, rest,
			{Op: "LabelNamespace", Namespace: theirs, Key: "team", Value: "red"}, rest, edit("download", agent), kill, rest, edit("download", named), rest, edit("release", released), rest,
			kill, edit("release", named), {Op: "LabelNamespace", Namespace: theirs, Key: "team"}, rest}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("charts%d", tries), known.steps, patience, true); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKnownCollisions plays a tenant whose Clusters and Fleet Clusters would get the namespace in
// Fleet of another namespace's Cluster, and one who was there first.
func TestKnownCollisions(t *testing.T) {
	if err := withRegistrar(true); err != nil {
		t.Fatal(err)
	}
	op := func(name string) Step { return Step{Op: name} }
	rest, noWebhook, collide, collect := op(quiet), op("WebhookStop"), op("TenantCollide"), op("FleetCollects")
	create, lose := op("CreateCollided"), Step{Op: "ForeignDelete", Kind: fleetClusterKind, Cluster: collided}
	deployed := Step{Op: "FleetDeploys", Kind: "Namespace", Cluster: collided}
	forge := Step{Op: "TenantCreateFleetCluster", Kind: "Nothing", Value: "mine", Cluster: collided}
	remove := Step{Op: "TenantDelete", Kind: fleetClusterKind, Cluster: collided}
	class := Step{Op: "CreateClass", ClassNamespace: 1}
	calls := Step{Op: "CreateCluster", Namespace: lib, Class: noClass, Kind: "Calls", Cluster: collided}
	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"a Cluster is refused", []Step{create, rest, collide, deployed, collide}},
		{"a Cluster that was not refused", []Step{create, rest, noWebhook, collide, deployed, collide}},
		{"a Fleet Cluster that is younger", []Step{create, rest, forge, collide, noWebhook, collide}},
		{"a Fleet Cluster that was there first", []Step{forge, noWebhook, create, rest, remove}},
		{"its namespace stays its own", []Step{create, rest, deployed, forge, lose, rest}},
		{"a namespace that Fleet has yet to remove", []Step{create, rest, deployed, {Op: "DeleteCluster", Cluster: collided}, forge, collide, collect, noWebhook, create, rest, remove}},
		{"one of a class of another namespace", []Step{class, forge, noWebhook, {Op: "CreateCluster", Namespace: lib, ClassNamespace: 1, Cluster: collided},
			{Op: "Initialize", Cluster: collided}, rest, remove}},
		{"one that calls", []Step{forge, noWebhook, calls, rest, remove, rest, {Op: "FleetGrants", Cluster: collided}, {Op: "AgentCalls", Cluster: collided}, collide}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("collide%d", tries), known.steps, patience, true); err != nil {
				t.Error(err)
			}
		})
	}
}
