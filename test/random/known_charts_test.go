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
	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"installed, upgraded, deleted", []Step{cluster, initialize, proxy(named), rest, edit("version", addonsv1.HelmChartProxySpec{Version: "1.x"}), rest, {Op: "DeleteProxy"}, rest}},
		{"selected and deselected", []Step{cluster, initialize, selected("yes"), proxy(picky), rest, selected("no"), rest, selected("yes"), rest}},
		{"deleted while the program is away", []Step{cluster, initialize, proxy(named), rest, kill, {Op: "DeleteProxy"}, rest}},
		{"there before the Fleet Cluster is", []Step{proxy(named), cluster, rest, initialize, rest}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("charts%d", tries), known.steps, patience, true); err != nil {
				t.Error(err)
			}
		})
	}
}
