package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// serveChartsCommand makes the demo a repository of charts, which stays as the page does.
const serveChartsCommand = "serve-charts"

// The charts write what they were given into a ConfigMap.
const (
	greeting = `{apiVersion: v1, kind: ConfigMap, metadata: {name: greeting}, data: {text: "{{ .Values.text }}"}}`
	shop     = `{apiVersion: v1, kind: ConfigMap, metadata: {name: shop}, data: {version: {{ .Chart.Version | quote }}}}`
	newShop  = `{apiVersion: v1, kind: ConfigMap, metadata: {name: shop}, data: {version: {{ .Chart.Version | quote }}, currency: {{ required "set the value currency" .Values.currency }}}}`
)

// serveCharts serves the charts until ctx ends. It prints its address, then its certificate authority.
func serveCharts(ctx context.Context) error {
	charts := repository.New()
	defer charts.Close()
	charts.Open()
	for _, its := range [][3]string{{"greeting", "1.0.0", greeting}, {"shop", "1.0.0", shop}, {"shop", "1.1.0", newShop}} {
		if err := charts.Publish(its[0], its[1], map[string]string{"configmap.yaml": its[2]}); err != nil {
			return err
		}
	}
	fmt.Printf("%s\n%s", charts.URL, charts.CA)
	<-ctx.Done()
	return nil
}

// repository returns the part of a HelmChartProxy that names the repository of the demo, which it starts if no story
// has. A Secret in this namespace has its certificate authority.
func (s *story) repository(namespace string) string {
	if _, err := os.Stat(s.logOf("charts")); err != nil { // The logs of a stack go when the next one starts.
		self, err := os.Executable()
		s.must(err)
		s.leave("charts", self, serveChartsCommand)
	}
	written, err := os.ReadFile(s.logOf("charts"))
	s.must(err)
	address, ca, _ := strings.Cut(string(written), "\n")
	s.must(s.Apply(s.ctx, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: charts-ca}, data: {ca.crt: %s}}",
		namespace, base64.StdEncoding.EncodeToString([]byte(ca)))))
	return fmt.Sprintf("repoURL: %q\n  tlsConfig: {caSecret: {name: charts-ca, namespace: %s}}", address, namespace)
}

// addChart installs a chart by one HelmChartProxy.
func (s *story) addChart() {
	s.act("A HelmChartProxy: one chart, its values from each Cluster, deployed by Fleet")
	s.apply(fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %[1]s, name: greeting}
spec:
  clusterSelector: {matchLabels: {env: edge}}
  chartName: greeting
  version: 1.0.x
  %[2]s
  valuesTemplate: |
    text: hello from {{ .Cluster.metadata.name }}
`, team, s.repository(team)))
	s.until("the chart", patience, "hello from "+edge, s.DownstreamKubectl, "-n", "default", "get", "configmap", "greeting", "-o", "jsonpath={.data.text}")
	s.checked("Fleet's agent has deployed the chart on %s/%s, with the value from its Cluster", team, edge)
	s.until("its status", patience, "1.0.0 1/1", s.Kubectl, "-n", team, "get", "hcp", "greeting", "-o", "jsonpath={.status.display.version} {.status.display.clusters}")
	out, err := s.Kubectl(s.ctx, "-n", team, "get", "hcp")
	s.must(err)
	s.checked("kubectl get hcp:")
	show(out)
}

// turnRed deploys a Bundle that cannot work.
func (s *story) turnRed() {
	s.act("A Bundle that fails, and why: kubectl muster trace alerts %s/%s", team, edge)
	s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: %s, name: alerts}
spec:
  defaultNamespace: default
  resources:
  - name: rule.yaml
    content: |
      apiVersion: monitoring.coreos.com/v1
      kind: PrometheusRule
      metadata:
        name: alerts
  targets: [{clusterName: %s}]
`, team, edge)))
	var trace string
	s.must(poll.Until(s.ctx, "the trace", patience, func(context.Context) (err error) {
		if trace, err = s.muster("trace", "alerts", team+"/"+edge); err == nil && !strings.Contains(trace, `no matches for kind "PrometheusRule"`) {
			err = fmt.Errorf("it does not say why:\n%s", trace)
		}
		return err
	}))
	show(trace)
	s.checked("it says which object the cluster cannot have, and who must act")
}

// shopProxy is the HelmChartProxy of the story charts.
const shopProxy = "shop"

// charts rolls a chart out in two stages. The second version fails on the canary, and is aborted.
func (s *story) charts() {
	s.scene()
	s.act("A chart for %s/%s and %s, in two stages (docs/guides/rollouts.md): the canary %[2]s, then the rest", team, edge, hosted)
	for _, its := range []struct{ namespace, name, stage string }{{team, edge, "canary"}, {hosted.namespace, hosted.name, "rest"}} {
		_, err := s.Kubectl(s.ctx, "-n", its.namespace, "label", "--overwrite", capiClusters, its.name, "shop="+its.stage)
		s.must(err)
	}
	s.apply(fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  clusterSelector: {matchExpressions: [{key: shop, operator: Exists}]}
  namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [%[1]s, %[3]s]}]}
  chartName: shop
  version: 1.0.0
  %[4]s
  rollout:
    stages:
    - {name: canary, clusterSelector: {matchLabels: {shop: canary}}, soak: 5s}
    - {name: rest, percent: 100}
`, team, shopProxy, hosted.namespace, s.repository(team)))
	s.untilVersion("1.0.0")
	s.untilRollout("Completed")
	s.checked("both have version 1.0.0")

	s.act("Version 1.1.0 needs a value that nobody has set")
	begin := time.Now()
	_, err := s.Kubectl(s.ctx, "-n", team, "patch", "hcp", shopProxy, "--type=merge", "-p", `{"spec":{"version":"1.1.0"}}`)
	s.must(err)
	s.untilRollout("Halted")
	s.checked("the rollout is halted %s after the change; kubectl muster rollout status %s:", poll.Since(begin), shopProxy)
	status, _ := s.muster("rollout", "status", team+"/"+shopProxy) // It exits with 1.
	show(status)
	s.untilVersion("1.0.0")
	s.checked("%s never got it, and %s/%s still runs version 1.0.0: a failed upgrade uninstalls nothing", hosted, team, edge)

	s.act("Back: kubectl muster rollout abort %s", shopProxy)
	out, err := s.muster("rollout", "abort", team+"/"+shopProxy)
	s.must(err)
	show(out)
	s.untilRollout("Completed")
	s.untilVersion("1.0.0")
	s.untilTrue("Ready", patience, "-n", team, "hcp", shopProxy)
	s.checked("the rollout is completed, and both have version 1.0.0")
	s.end("kubectl muster rollout status " + team + "/" + shopProxy)
}

// untilRollout waits until the rollout has a reason, about the current generation.
func (s *story) untilRollout(reason string) {
	s.must(poll.Until(s.ctx, "the rollout", 2*patience, func(ctx context.Context) error {
		got, err := s.Kubectl(ctx, "-n", team, "get", "hcp", shopProxy, "-o",
			`jsonpath={.metadata.generation} {range .status.conditions[?(@.type=="RolloutCompleted")]}{.observedGeneration} {.reason} {.message}{end}`)
		if is := strings.SplitN(got, " ", 4); err == nil && (len(is) < 4 || is[0] != is[1] || is[2] != reason) {
			err = fmt.Errorf("it is %q, not %s", got, reason)
		}
		return err
	}))
}

// untilVersion waits until both clusters have a version.
func (s *story) untilVersion(version string) {
	for _, run := range []kubectl{s.DownstreamKubectl, s.inside} {
		s.until("the chart", 2*patience, version, run, "-n", "default", "get", "configmap", "shop", "-o", "jsonpath={.data.version}")
	}
}

// scene makes the two clusters that are really there, if the main story has not.
func (s *story) scene() {
	if !s.exists("fac", "fleet-addon-config") {
		s.configure()
	}
	if !s.exists("-n", hosted.namespace, capiClusters, hosted.name) {
		s.addHosted()
	}
	if !s.exists("-n", team, capiClusters, edge) {
		s.namespace(team)
		s.deployDownstream()
	}
	s.until("the agent's Pod", 2*patience, "Running", s.inside,
		"-n", "fleet-addon-agent", "get", "pods", "-l", "app=fleet-agent", "-o", "jsonpath={.items[*].status.phase}")
}

// end ends a story beside the main one.
func (s *story) end(try string) {
	fmt.Printf(`
Everything above was checked. The story took %s; the stack is still up. Try:

   export KUBECONFIG=$PWD/.dev/kubeconfig PATH=$PWD/.dev/bin:$PATH
   %s
   make down       # stop it all
`, poll.Since(s.begin), try)
}
