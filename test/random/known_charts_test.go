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
	edit := func(key string, spec addonsv1.HelmChartProxySpec) Step {
		return Step{Op: "EditProxy", Key: key, Chart: &spec}
	}
	yes := metav1.LabelSelector{MatchLabels: map[string]string{chartLabel: "yes"}}
	selected := func(value string) Step { return Step{Op: "SelectForChart", Key: chartLabel, Value: value} }
	named := addonsv1.HelmChartProxySpec{Version: "1.0.0", ValuesTemplate: "who: {{ .Cluster.metadata.name }}"}
	picky := addonsv1.HelmChartProxySpec{Version: "1.0.0", ClusterSelector: yes}
	of := func(change func(*addonsv1.HelmChartProxySpec)) addonsv1.HelmChartProxySpec {
		spec := named
		change(&spec)
		return spec
	}
	static := of(func(s *addonsv1.HelmChartProxySpec) { s.ValuesTemplate = "who: anybody" })
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
		{"installed, upgraded, deleted", []Step{cluster, initialize, proxy(named), rest, edit("version", addonsv1.HelmChartProxySpec{Version: "1.x"}), rest, {Op: "DeleteProxy"}, rest}},
		{"selected and deselected", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, selected("no"), rest, selected("yes"), rest}},
		{"deleted while the program is away", []Step{cluster, initialize, proxy(named), rest, kill, {Op: "DeleteProxy"}, rest}},
		{"there before the Fleet Cluster is", []Step{proxy(named), cluster, rest, initialize, rest}},
		{"a paused Cluster keeps its values", []Step{cluster, initialize, proxy(named), rest, pause, edit("template", static), rest, unpause, rest}},
		{"a paused Cluster keeps values that are for all", []Step{cluster, initialize, proxy(static), rest, pause, edit("template", otherwise), rest, unpause, rest}},
		{"a paused Cluster keeps values that come from elsewhere", []Step{cluster, initialize, proxy(sourcedBy), rest, pause, source("2"), rest, unpause, rest}},
		{"deselected while it is paused", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, pause, selected("no"), rest, unpause, rest}},
		{"deselected while it is moved", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, moves, selected("no"), rest, stays, rest}},
		{"deleted while a Cluster is moved", []Step{cluster, initialize, proxy(named), rest, moves, rest, {Op: "DeleteProxy"}, rest, stays, rest}},
		{"a version that is not there", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, edit("version", missing), rest, selected("no"), rest, selected("yes"), rest,
			edit("version", named), rest}},
		{"a template that fails", []Step{cluster, initialize, proxy(named), rest, edit("template", fails), rest, edit("version", newer), rest, edit("template", static), rest}},
		{"agents download it, and the manager again", []Step{cluster, initialize, proxy(named), rest, edit("download", agent), kill, rest, edit("download", named), rest}},
		{"another release", []Step{cluster, initialize, proxy(named), rest, edit("release", released), rest, kill, edit("release", named), rest}},
		{"of another namespace", []Step{cluster, initialize, {Op: "CreateProxy", Namespace: lib, Chart: &everywhere}, rest, {Op: "LabelNamespace", Namespace: theirs, Key: "team", Value: "red"}, rest,
			kill, {Op: "LabelNamespace", Namespace: theirs, Key: "team"}, rest}},
		{"made anew with the garbage collector away", []Step{cluster, initialize, proxy(named), rest, {Op: "StopGC"}, {Op: "DeleteProxy"}, rest, proxy(named), rest, {Op: "StartGC"}, rest}},
		{"values go, and come again", []Step{cluster, initialize, proxy(secretly), rest, secret(""), rest, secret("2"), rest}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("charts%d", tries), known.steps, patience, true); err != nil {
				t.Error(err)
			}
		})
	}
}
