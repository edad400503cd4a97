package render

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const chartProxy = `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {name: web, namespace: team}
spec:
  clusterSelector: {matchLabels: {env: prod}}
  repoURL: https://charts.example.com
  chartName: web
  version: 1.2.3
  valuesFrom: [{kind: ConfigMap, name: common}]
  valuesTemplate: "name: {{ .Cluster.metadata.name }}\n"
`

func TestChart(t *testing.T) {
	const other = "{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: other, namespace: team}}"
	const common = "{apiVersion: v1, kind: ConfigMap, metadata: {name: common, namespace: team}, data: {values.yaml: 'a: 1'}}"
	objects, notes, result := render(t, plain[:len(plain)-2]+", labels: {env: prod}}\n", other, common, chartProxy)
	if got := strings.Join(objects, "\n"); !strings.Contains(got, "Bundle team/hcp-web-default-web-") ||
		!strings.Contains(got, "ConfigMap team/hcp-web.for.prod") || strings.Contains(got, "for.other") {
		t.Errorf("objects:\n%s", got)
	}
	all, err := yaml.Marshal(result.Objects)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: prod\n", "a: 1", "clusterName: prod", "releaseName: web"} {
		if !strings.Contains(string(all), want) {
			t.Errorf("%q is not in:\n%s", want, all)
		}
	}
	if got := strings.Join(notes, "\n"); !strings.Contains(got, "the files of the chart are not shown below") {
		t.Errorf("notes: %s", got)
	}
}

func TestChartByAgents(t *testing.T) {
	objects, _, result := render(t, plain[:len(plain)-2]+", labels: {env: prod}}\n", chartProxy+"  download: Agent\n  credentials: {secret: {name: repository}, key: config.json}\n")
	if got := strings.Join(objects, "\n"); !strings.Contains(got, "Bundle team/hcp-web-default-web-") {
		t.Errorf("objects:\n%s", got)
	}
	all, err := yaml.Marshal(result.Objects)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"repo: https://charts.example.com", "helmOpSecretName: hcp-web-default-web-", "clusterName: prod"} {
		if !strings.Contains(string(all), want) {
			t.Errorf("%q is not in:\n%s", want, all)
		}
	}
}

func TestChartRefused(t *testing.T) {
	_, err := rendered(plain, strings.Replace(chartProxy, "https:", "http:", 1))
	if err == nil || !strings.Contains(err.Error(), "HelmChartProxy team/web: spec.repoURL") {
		t.Errorf("%v", err)
	}
}
