package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	charts = "muster-helm"
	// mostSelected is how many Clusters the bar of a HelmChartProxy is for.
	mostSelected = 1000
	// oneByOne is how many Clusters are changed, one after the other.
	oneByOne = 10
	// chartSize is about what the chart takes in a Bundle.
	chartSize = 64 << 10
	// fewestValues and mostValues are what the values of one Cluster take.
	fewestValues, mostValues = 4 << 10, 5 << 10
	// maxChange and maxChangeBytes are the processor time in ms and the KiB that one Cluster
	// may take, however many are selected.
	maxChange      = 10
	maxChangeBytes = 16

	selectLabel = "bench.example.com/chart"
)

var (
	chartsProxy = client.ObjectKey{Namespace: "bench-00", Name: "bench"}
	// chartsWrite are what it writes, but for events.
	chartsWrite = []string{"bundles", "configmaps", "helmreleaseproxies", "helmchartproxies"}
)

// chartsLevel is what was measured with a number of selected Clusters: some were changed one after the other.
type chartsLevel struct {
	n        int
	requests requests
	bytes    float64
	cpu      time.Duration
	memory   usage.Memory
}

// measureCharts measures the optional component helm: one HelmChartProxy, and Clusters that it
// selects. The benchmark plays Fleet.
func measureCharts(ctx context.Context, s *session) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	repo := repository.New()
	defer repo.Close()
	g := s.clusters("bench", 1, 1)
	if err := s.prepareCharts(ctx, g, repo); err != nil {
		return err
	}
	if err := playFleet(ctx, s); err != nil {
		return err
	}
	most := min(s.n, mostSelected)
	var levels []chartsLevel
	for _, n := range []int{most / 10, most * 2 / 5, most} {
		l, err := s.measureSelected(ctx, g, n)
		if err != nil {
			return fmt.Errorf("with %d Clusters: %w", n, err)
		}
		levels = append(levels, l)
	}
	s.print(chartsTable(levels))
	return nil
}

// prepareCharts starts the component, with a chart and a HelmChartProxy.
func (s *session) prepareCharts(ctx context.Context, g *generator, repo *repository.Repository) error {
	random := rand.NewChaCha8([32]byte{})
	filler := make([]byte, chartSize*3/4*3/4) // It is in base64 here, and in the Bundle once more.
	_, _ = random.Read(filler)
	if err := repo.Publish("bench", "1.0.0", map[string]string{"filler.yaml": "# " + base64.StdEncoding.EncodeToString(filler) + "\n"}); err != nil {
		return err
	}
	repo.Open()
	if err := s.enable(ctx, true); err != nil {
		return err
	}
	if err := g.prepare(ctx); err != nil {
		return err
	}
	if err := s.env.StartCharts(ctx); err != nil {
		return err
	}
	return s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: %[1]s, name: repository}
data: {ca.crt: %[4]s}
---
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  clusterSelector: {matchLabels: {%[5]s: "yes"}}
  repoURL: %[3]s
  chartName: bench
  version: 1.0.0
  tlsConfig: {caSecret: {name: repository}}
  valuesTemplate: |
    revision: {{ index .Cluster.metadata.labels %[6]q | default "none" }}
    version: {{ .ControlPlane.spec.version }}
    hosts:
    {{- range $i := until 56 }}
    - "{{ $i }}.{{ $.Cluster.metadata.name }}.{{ $.Cluster.spec.controlPlaneEndpoint.host }}/{{ $.InfraCluster.metadata.name }}/index.html"
    {{- end }}
`, chartsProxy.Namespace, chartsProxy.Name, repo.URL, base64.StdEncoding.EncodeToString(repo.CA), selectLabel, clusterLabel))
}

// measureSelected imports Clusters up to a number and selects them all, and changes some, one after the other.
func (s *session) measureSelected(ctx context.Context, g *generator, n int) (l chartsLevel, err error) {
	have := g.next
	if err := s.importAll(ctx, g, n-have); err != nil {
		return l, err
	}
	s.say("%d Clusters: select %d", n, n-have)
	if err := s.deployed(ctx, n, func() error {
		return g.each(ctx, have, n, func(ctx context.Context, i int) error {
			namespace := &corev1.Namespace{}
			namespace.Name = oracle.FleetNamespace(g.key(i))
			if err := s.admin.Create(ctx, namespace); err != nil {
				return err
			}
			return g.label(ctx, clusterFile, i, selectLabel, "yes")
		})
	}); err != nil {
		return l, err
	}
	s.say("%d Clusters: change %d one after the other", n, oneByOne)
	before, err := s.bodies(ctx)
	if err != nil {
		return l, err
	}
	l.n = n
	revision := fmt.Sprintf("at-%d", n)
	for c := range oneByOne {
		i := c * n / oneByOne
		p, err := s.during(ctx, charts, func(*phase) error {
			return s.deployed(ctx, n, func() error { return g.label(ctx, clusterFile, i, clusterLabel, revision) })
		})
		if err != nil {
			return l, err
		}
		if err := s.hasValues(ctx, g.key(i), revision); err != nil {
			return l, err
		}
		l.requests, l.cpu = append(l.requests, p.requests...), l.cpu+p.cpu
	}
	after, err := s.bodies(ctx)
	if err != nil {
		return l, err
	}
	l.bytes = after - before
	l.memory, err = s.atRest(ctx, charts)
	return l, err
}

// deployed has something happen, and waits until muster-helm is quiet and the HelmChartProxy says that it is
// deployed on so many Clusters.
func (s *session) deployed(ctx context.Context, selected int, happen func() error) error {
	if err := happen(); err != nil {
		return err
	}
	proxy := &addonsv1.HelmChartProxy{}
	if err := wait.PollUntilContextTimeout(ctx, 0, patience, true, func(ctx context.Context) (bool, error) {
		if _, err := s.during(ctx, charts, func(*phase) error { return nil }); err != nil {
			return false, err
		}
		err := s.admin.Get(ctx, chartsProxy, proxy)
		return len(proxy.Status.MatchingClusters) == selected && meta.IsStatusConditionTrue(proxy.Status.Conditions, addonsv1.ReadyCondition), err
	}); err != nil {
		return fmt.Errorf("%d Clusters: %+v: %w", len(proxy.Status.MatchingClusters), proxy.Status.Conditions, err)
	}
	return nil
}

// hasValues checks that a Cluster has values of its own, of the size that is measured and of this revision.
func (s *session) hasValues(ctx context.Context, key client.ObjectKey, revision string) error {
	text := ""
	for slot := range 2 { // The one that the agent has read before is deleted.
		values := &corev1.ConfigMap{}
		err := s.admin.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: plan.ValuesName(chartsProxy, key.Namespace, key.Name, slot)}, values)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		for _, its := range values.Data {
			text += its
		}
	}
	if len(text) < fewestValues || len(text) > mostValues || !strings.Contains(text, revision) ||
		!strings.Contains(text, "55."+key.Name+"."+key.Name+".clusters.example.com/"+key.Name) {
		return fmt.Errorf("the values of %s have %d bytes, and not revision %s", key, len(text), revision)
	}
	return nil
}

// bodies returns how much the API server was sent of what muster-helm writes, by whomever.
func (s *session) bodies(ctx context.Context) (float64, error) {
	const sizes = "apiserver_request_body_size_bytes_sum"
	snapshot, err := metrics.Scrape(ctx, s.kube.RESTClient(), sizes)
	total := 0.0
	for _, resource := range chartsWrite {
		total += snapshot.Sum(sizes, func(labels map[string]string) bool { return labels["resource"] == resource })
	}
	if err == nil && total == 0 {
		err = errors.New("the API server does not say how much it is sent")
	}
	return total, err
}

func chartsTable(levels []chartsLevel) table {
	t := table{title: "One Cluster of a HelmChartProxy changes"}
	first := levels[0]
	t.note("one HelmChartProxy in one namespace, a chart of %d KiB in its Bundles, values of %d KiB for each Cluster; the benchmark plays Fleet, which deploys at once; %d changes, one after the other; baseline: with %d Clusters",
		chartSize>>10, fewestValues>>10, oneByOne, first.n)
	t.note("bytes are the bodies of requests, by the API server's own metric; the played Fleet's are among those for Bundles: some 60 bytes each time that it takes one over")
	for _, l := range levels {
		t.note("%d Clusters: %s", l.n, l.requests)
		row := func(name, unit string, of func(chartsLevel) float64) figure {
			return value(fmt.Sprintf("%s, %d Clusters", name, l.n), unit, of(l)).against(of(first))
		}
		t.add(
			row("processor time", "ms", func(l chartsLevel) float64 { return perOne(l.cpu, oneByOne) }).atMost(maxChange),
			row("bytes", "KiB", func(l chartsLevel) float64 { return l.bytes / oneByOne / 1024 }).atMost(maxChangeBytes),
			row("writes", "", func(l chartsLevel) float64 { return float64(len(l.requests.of(write))) / oneByOne }),
			row("GET and LIST", "", func(l chartsLevel) float64 { return float64(len(l.requests.of(read))) / oneByOne }),
			row("charts", "MiB", func(l chartsLevel) float64 { return l.memory.Now }),
		)
	}
	return t
}
