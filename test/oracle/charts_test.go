package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// carriedNow lists what Fleet is handed.
func carriedNow(s State) string {
	var all []string
	for of, carrier := range s.Charts.Carriers {
		for name, values := range carrier.Targets {
			all = append(all, fmt.Sprintf("%s: %s %s %s as %s/%s on %s with %v", of, carrier.Kind, carrier.Chart, carrier.Version, carrier.ReleasedIn, carrier.ReleaseName, name, values))
		}
	}
	for proxy, told := range s.Charts.Mirrors {
		for _, cluster := range slices.Sorted(maps.Keys(told)) {
			all = append(all, fmt.Sprintf("mirror of %s for %s: %s", proxy, cluster, told[cluster]))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// TestCharts goes from one wish to the next, each time until everything has settled.
func TestCharts(t *testing.T) {
	key := Key{Namespace: "team", Name: "web"}
	s := scene()
	s.Charts.Published["simple"] = []string{"1.0.0", "1.1.0", "2.0.0"}
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	proxy.Spec.ChartName, proxy.Spec.Version, proxy.Spec.ValuesTemplate = "simple", "1.x", "who: {{ .Cluster.metadata.name }}"
	s.Charts.Proxies[key] = proxy
	const mirror = "mirror of team/web for team/one: Available"
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"a range stands for its newest version", func() {}, "HelmChartProxy team/web in team: Bundle simple 1.1.0 as default/web on one with map[who:one]\n" + mirror},
		{"agents download it", func() { proxy.Spec.Download = addonsv1.DownloadAgent }, "HelmChartProxy team/web in team: HelmOp simple 1.1.0 as default/web on one with map[who:one]\n" + mirror},
		{"what fails keeps its values, and gets the version", func() {
			proxy.Spec.ValuesTemplate, proxy.Spec.Version = "{{ if eq .Cluster.metadata.name \"one\" }}{{ fail \"no\" }}{{ end }}who: {{ .Cluster.metadata.name }}", ""
		}, "HelmChartProxy team/web in team: HelmOp simple 2.0.0 as default/web on one with map[who:one]\nmirror of team/web for team/one: ValueParsingFailed"},
		{"a version that is not there leaves all as it is", func() { proxy.Spec.Version, proxy.Spec.ReleaseName = "9.9.9", "other" },
			"HelmChartProxy team/web in team: HelmOp simple 2.0.0 as default/web on one with map[who:one]\nmirror of team/web for team/one: Available or ValueParsingFailed or HelmReleaseProxyCreationFailed"},
		{"but for whoever is not selected", func() { proxy.Spec.ClusterSelector.MatchLabels = map[string]string{"chart": "yes"} }, ""},
		{"a Cluster that is paused is not deployed to anew", func() {
			proxy.Spec.Version, proxy.Spec.ValuesTemplate, proxy.Spec.ClusterSelector.MatchLabels = "1.0.0", "who: anybody", nil
			s.Clusters[one].Spec.Paused = ptr.To(true)
		}, "mirror of team/web for team/one: Available or ValueParsingFailed or HelmReleaseProxyCreationFailed"},
		{"and is when it is not paused any more", func() { s.Clusters[one].Spec.Paused = nil }, "HelmChartProxy team/web in team: HelmOp simple 1.0.0 as default/other on one with map[who:anybody]\n" + mirror},
		{"values from a ConfigMap lie below", func() {
			proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: "values"}}
			s.Charts.Sources[Source{Kind: "ConfigMap", Key: Key{Namespace: "team", Name: "values"}}] = map[string]any{"who": "nobody", "more": "x"}
		}, "HelmChartProxy team/web in team: HelmOp simple 1.0.0 as default/other on one with map[more:x who:anybody]\n" + mirror},
		{"nothing is left when it is paused, but what was there", func() {
			proxy.Annotations = map[string]string{pauseAnnotation: "true"}
			proxy.Spec.ReleaseName, proxy.Spec.ValuesFrom = "", nil
		}, "HelmChartProxy team/web in team: HelmOp simple 1.0.0 as default/other on one with map[more:x who:anybody]\n" + mirror},
		{"and nothing when it is gone", func() { delete(s.Charts.Proxies, key) }, ""},
	} {
		step.do()
		s = Settle(s)
		proxy = s.Charts.Proxies[key]
		if got := carriedNow(s); got != step.want {
			t.Errorf("%s:\n%s\nnot\n%s", step.name, got, step.want)
		}
	}
}
