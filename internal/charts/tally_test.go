package charts

import (
	"maps"
	"testing"

	dto "github.com/prometheus/client_model/go"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

const (
	proxiesMetric  = "muster_helmchartproxies_by_reason"
	releasesMetric = "muster_helmreleases_by_reason"
	withoutMetric  = "muster_helmchartproxies_without_chart"
)

// exposed returns what is exposed of a metric that is not zero, by reason.
func exposed(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	result := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			result[reasonIn(series)] = series.GetGauge().GetValue()
		}
	}
	if len(result) == 0 {
		t.Errorf("%s is not exposed", name)
	}
	return result
}

func reasonIn(series *dto.Metric) string {
	if len(series.GetLabel()) == 0 {
		return ""
	}
	return series.GetLabel()[0].GetValue()
}

func nonzero(all map[string]float64) map[string]float64 {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(_ string, value float64) bool { return value == 0 })
	return all
}

func TestTally(t *testing.T) {
	const pending, failed = addonsv1.HelmReleasePendingReason, addonsv1.HelmInstallOrUpgradeFailedReason
	one, two := plan.Key{Namespace: "team", Name: "one"}, plan.Key{Namespace: "team", Name: "two"}
	counts := newTally()
	check := func(what string, proxies, releases map[string]float64, without float64) {
		t.Helper()
		expect(t, what+": HelmChartProxies", nonzero(exposed(t, proxiesMetric)), proxies)
		expect(t, what+": releases", nonzero(exposed(t, releasesMetric)), releases)
		expect(t, what+": without a chart", exposed(t, withoutMetric)[""], without)
	}
	none := map[string]float64{}
	check("nothing", none, none, 0)
	expect(t, "reasons of HelmChartProxies", len(exposed(t, proxiesMetric)), len(proxyReasons))
	expect(t, "reasons of releases", len(exposed(t, releasesMetric)), len(releaseReasons))
	counts.set(one, fares{ready: pending, releases: map[string]int{pending: 2, failed: 1}})
	counts.set(one, fares{ready: pending, releases: map[string]int{pending: 2, failed: 1}})
	counts.set(two, fares{ready: pending, lacks: true, releases: map[string]int{failed: 1}})
	check("two", map[string]float64{pending: 2}, map[string]float64{pending: 2, failed: 2}, 1)
	counts.set(one, fares{ready: addonsv1.ClusterSelectionFailedReason})
	check("it is not known how releases fare", map[string]float64{pending: 1, addonsv1.ClusterSelectionFailedReason: 1}, map[string]float64{pending: 2, failed: 2}, 1)
	counts.forget(one)
	counts.forget(one)
	counts.set(two, fares{ready: plan.ReadyReason, releases: map[string]int{plan.ReadyReason: 1}})
	check("one is gone, the other ready", map[string]float64{plan.ReadyReason: 1}, map[string]float64{plan.ReadyReason: 1}, 0)
}

// What is counted is what is told.
func TestCounted(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.ValuesTemplate = `name: {{ if eq .Cluster.metadata.name "two" }}{{ fail "no" }}{{ end }}{{ .Cluster.metadata.name }}`
	s.create(proxy)
	s.looks()
	expect(t, "one template fails", nonzero(exposed(t, releasesMetric)),
		map[string]float64{addonsv1.PreparingToHelmInstallReason: 2, addonsv1.ValueParsingFailedReason: 1})
	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "9.9.9", 2 })
	s.looks()
	expect(t, "there is no such version", exposed(t, withoutMetric)[""], 1.0)
	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "1.0.0", 3 })
	s.looks()
	expect(t, "there is", exposed(t, withoutMetric)[""], 0.0)
	expect(t, "one HelmChartProxy", len(nonzero(exposed(t, proxiesMetric))), 1)
	s.change(proxy, func() { proxy.Annotations = map[string]string{"cluster.x-k8s.io/paused": ""} })
	s.looks()
	expect(t, "paused", nonzero(exposed(t, proxiesMetric)), map[string]float64{})
}
