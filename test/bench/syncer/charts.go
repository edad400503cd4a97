package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/charts/repository"
	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	charts = "muster-charts"
	// mostSelected is how many Clusters the bar of a HelmChartProxy is for.
	mostSelected = 1000
	// oneByOne is how many Clusters are selected, or changed, one after the other.
	oneByOne = 10
	// chartSize is about what the chart takes in a Bundle.
	chartSize = 64 << 10
	// fewestValues and mostValues are what the values of one Cluster take.
	fewestValues, mostValues = 4 << 10, 5 << 10

	selectLabel = "bench.example.com/chart"
)

var (
	chartsUser  = stack.ServiceAccount("muster-system", charts)
	chartsProxy = client.ObjectKey{Namespace: "bench-00", Name: "bench"}
	// chartsWrite are what it writes, but for events.
	chartsWrite = []string{"bundles", "helmops", "configmaps", "helmreleaseproxies", "helmchartproxies"}
)

// selectedLevel is what was measured with a number of selected Clusters.
type selectedLevel struct {
	n int
	// atOnce are those that are selected at once, single and changed those that are selected
	// or changed one after the other.
	atOnce, single, changed chartsWork
	// charts, restarted and syncer are their memory; imported is the syncer's before the Clusters
	// are selected.
	charts, restarted, syncer, imported usage.Memory
	restart                             requests
	largest                             map[string]int
}

// measureCharts measures the optional component helm: one HelmChartProxy, and Clusters that it
// selects. The benchmark plays Fleet.
func measureCharts(ctx context.Context, o options) (tables []report.Table, err error) {
	o.n = min(o.n, mostSelected)
	s, err := open(ctx, o, stack.Options{Profile: stack.API})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(tables)) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	repo := repository.New()
	defer repo.Close()
	g := s.generator()
	g.Shape = load.Shape{Prefix: "bench", Namespaces: 1, Classes: 1}
	if err := s.prepareCharts(ctx, g, repo); err != nil {
		return nil, err
	}
	fleet, err := s.playFleetFor(ctx)
	if err != nil {
		return nil, err
	}
	var all []selectedLevel
	have := 0
	for _, n := range steps(s.n) {
		l, err := s.measureSelected(ctx, g, fleet, have, n)
		if err != nil {
			return chartsTables(o, all), fmt.Errorf("with %d Clusters: %w", n, errors.Join(err, fleet.trouble()))
		}
		all, have = append(all, l), n
	}
	bare, err := s.writeBarely(ctx, g)
	return append(chartsTables(o, all), bare), err
}

// prepareCharts starts the component, with a chart and a HelmChartProxy.
func (s *session) prepareCharts(ctx context.Context, g *load.Generator, repo *repository.Repository) error {
	random := rand.NewChaCha8([32]byte{})
	filler := make([]byte, chartSize*3/4*3/4) // It is in base64 here, and in the Bundle once more.
	_, _ = random.Read(filler)
	if err := repo.Publish("bench", "1.0.0", map[string]string{"filler.yaml": "# " + base64.StdEncoding.EncodeToString(filler) + "\n"}); err != nil {
		return err
	}
	repo.Open()
	if err := s.configure(ctx, true); err != nil {
		return err
	}
	if err := g.Prepare(ctx); err != nil {
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
  download: %[7]s
  tlsConfig: {caSecret: {name: repository}}
  valuesTemplate: |
    revision: {{ index .Cluster.metadata.labels %[6]q | default "none" }}
    version: {{ .ControlPlane.spec.version }}
    hosts:
    {{- range $i := until 56 }}
    - "{{ $i }}.{{ $.Cluster.metadata.name }}.{{ $.Cluster.spec.controlPlaneEndpoint.host }}/{{ $.InfraCluster.metadata.name }}/index.html"
    {{- end }}
`, chartsProxy.Namespace, chartsProxy.Name, repo.URL, base64.StdEncoding.EncodeToString(repo.CA), selectLabel, clusterLabel, s.download))
}

func (s *session) followCharts() (*phase, error) { return s.follow(chartsUser, charts) }

// measureSelected imports Clusters, and selects them: most at once, the last one after the other.
func (s *session) measureSelected(ctx context.Context, g *load.Generator, fleet *playedFleet, have, n int) (l selectedLevel, err error) {
	l.n = n
	if n-have <= oneByOne {
		return l, fmt.Errorf("-n %d is too small", s.n)
	}
	if err := s.importAll(ctx, g, have, n); err != nil {
		return l, err
	}
	if err := g.Each(ctx, have, n, func(ctx context.Context, i int) error {
		namespace := &corev1.Namespace{}
		namespace.Name = oracle.FleetNamespace(g.Key(i))
		return s.admin.Create(ctx, namespace)
	}); err != nil {
		return l, err
	}
	if l.imported, err = s.atRest(ctx, syncer); err != nil {
		return l, err
	}
	selected := func(i int) error { return s.label(ctx, g, i, selectLabel, "yes") }
	s.say("%d Clusters: select %d at once", n, n-have-oneByOne)
	if l.atOnce, err = s.work(ctx, fleet, keysAt(g, have, n-oneByOne, time.Time{}), n-oneByOne, func() error {
		return g.Each(ctx, have, n-oneByOne, func(_ context.Context, i int) error { return selected(i) })
	}); err != nil {
		return l, err
	}
	s.say("%d Clusters: select %d one after the other", n, oneByOne)
	l.single.bytes, l.changed.bytes = map[string]float64{}, map[string]float64{}
	for i := n - oneByOne; i < n; i++ {
		w, err := s.work(ctx, fleet, keysAt(g, i, i+1, time.Time{}), i+1, func() error { return selected(i) })
		if err != nil {
			return l, err
		}
		l.single.add(w)
	}
	s.say("%d Clusters: change %d one after the other", n, oneByOne)
	var profiling errgroup.Group
	profiling.Go(func() error { return s.save(ctx, charts, "profile?seconds=10", fmt.Sprintf("charts-cpu-%d.pprof", n)) })
	for c := range oneByOne {
		i := c * n / oneByOne
		w, err := s.work(ctx, fleet, keysAt(g, i, i+1, time.Time{}), n, func() error { return s.label(ctx, g, i, clusterLabel, fmt.Sprintf("at-%d", n)) })
		if err != nil {
			return l, err
		}
		l.changed.add(w)
	}
	if err := profiling.Wait(); err != nil {
		return l, err
	}
	if err := s.haveValues(ctx, g, n); err != nil {
		return l, err
	}
	if l.largest, err = s.largest(ctx); err != nil {
		return l, err
	}
	return l, s.chartsMemory(ctx, n, &l)
}

func (s *session) label(ctx context.Context, g *load.Generator, i int, key, value string) error {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = g.Key(i).Namespace, g.Key(i).Name
	return s.admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)))
}

// haveValues checks that each Cluster has values of its own, of the size that is measured.
func (s *session) haveValues(ctx context.Context, g *load.Generator, n int) error {
	for i := range n {
		key := g.Key(i)
		values := &corev1.ConfigMap{}
		if err := s.admin.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: plan.ValuesName(chartsProxy, key.Namespace, key.Name)}, values); err != nil {
			return err
		}
		text := values.Data[plan.ValuesKey]
		if len(text) < fewestValues || len(text) > mostValues || !strings.Contains(text, "55."+key.Name+"."+key.Name+".clusters.example.com/"+key.Name) {
			return fmt.Errorf("the values of %s have %d bytes", key, len(text))
		}
	}
	return nil
}

// largest returns the size of the largest object of each kind, as the API server has it.
func (s *session) largest(ctx context.Context) (map[string]int, error) {
	largest := map[string]int{}
	for _, list := range []client.ObjectList{
		&fleetv1.BundleList{}, &fleetv1.HelmOpList{}, &fleetv1.BundleDeploymentList{}, &corev1.ConfigMapList{}, &corev1.SecretList{},
		&addonsv1.HelmChartProxyList{}, &addonsv1.HelmReleaseProxyList{}, &fleetv1.ClusterList{},
	} {
		if err := s.admin.List(ctx, list); err != nil {
			return nil, err
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			text, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			kind := reflect.TypeOf(object).Elem().Name()
			largest[kind] = max(largest[kind], len(text))
		}
	}
	return largest, nil
}

// chartsMemory measures memory at rest, and what a start asks for.
func (s *session) chartsMemory(ctx context.Context, n int, l *selectedLevel) (err error) {
	s.say("%d Clusters: memory", n)
	if l.charts, err = s.atRest(ctx, charts); err != nil {
		return err
	}
	if l.syncer, err = s.atRest(ctx, syncer); err != nil {
		return err
	}
	if err := s.save(ctx, charts, "heap", fmt.Sprintf("charts-heap-%d.pprof", n)); err != nil {
		return err
	}
	p, err := s.followCharts()
	if err != nil {
		return err
	}
	if err := s.env.Restart(ctx, charts); err != nil {
		return err
	}
	if l.restarted, err = s.atRest(ctx, charts); err != nil {
		return err
	}
	_, err = p.read()
	l.restart = p.requests
	return errors.Join(err, s.isDeployed(ctx, n))
}
