package random

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

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
