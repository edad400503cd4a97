package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	helm = "muster-helm"
	// mostSelected is the number of Clusters that the bar of a HelmChartProxy is for.
	mostSelected = 1000
	// oneByOne is how many Clusters are changed, and how many are selected in addition, one after the other.
	oneByOne = 10
	// steps is how many steps of a rollout are counted.
	steps = 6
	// maxStep is how many requests a step may take, however many Clusters wait.
	maxStep = 20
	// chartSize is about the size of the chart in a Bundle.
	chartSize = 64 << 10
	// fewestValues and mostValues are limits of the size of one Cluster's values.
	fewestValues, mostValues = 4 << 10, 5 << 10
	// maxChange and maxChangeBytes limit the processor time in ms and the KiB for one Cluster, however many are
	// selected.
	maxChange      = 10
	maxChangeBytes = 16

	selectLabel = "bench.example.com/chart"
)

// helmWrites are the resources that muster-helm writes, without events.
var helmWrites = []string{"bundles", "configmaps", "helmreleaseproxies", "helmchartproxies"}

// helmLevel holds the measurements of a HelmChartProxy that selects n Clusters.
type helmLevel struct {
	n int
	// all is the cost of deploying to all of them at once, and the duration; changed and added are changes of single
	// Clusters, one after the other.
	all            helmCost
	took           time.Duration
	changed, added helmCost
	// whole is the cost of a change to this many of them, and bounded is the same with maxUnavailable.
	many           int
	whole, bounded helmCost
	// steps are the requests between one Cluster that takes a change over and the next.
	steps  []int
	memory usage.Memory
}

// helmCost is the cost of an operation for muster-helm: requests, bytes sent and received, and processor time,
// including its workers.
type helmCost struct {
	requests       requests
	sent, received float64
	cpu            time.Duration
}

// measureHelm measures the optional component helm, with HelmChartProxies that each select a different number of
// Clusters in one namespace. The benchmark plays Fleet.
func measureHelm(ctx context.Context, s *session) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	repo := repository.New()
	defer repo.Close()
	g := s.clusters("bench", 1, 1)
	if err := s.prepareHelm(ctx, g, repo); err != nil {
		return err
	}
	fleet, err := playFleet(ctx, s)
	if err != nil {
		return err
	}
	most := min(s.n, mostSelected)
	sizes := []int{max(1, most/100), max(1, most/10), most}
	total := 0
	for _, n := range sizes {
		total += n + oneByOne
	}
	// Kubernetes puts a ConfigMap into each new namespace, which must not count.
	if err := g.each(ctx, 0, total, func(ctx context.Context, i int) error {
		namespace := &corev1.Namespace{}
		namespace.Name = oracle.FleetNamespace(g.key(i))
		return s.admin.Create(ctx, namespace)
	}); err != nil {
		return err
	}
	if err := s.importAll(ctx, g, total); err != nil {
		return err
	}
	var levels []helmLevel
	from := 0
	for _, n := range sizes {
		l, err := s.measureProxy(ctx, g, repo, from, n)
		if err == nil {
			err = s.measureRollouts(ctx, &l, g.key(from+n), fleet)
		}
		if err != nil {
			return fmt.Errorf("with %d Clusters: %w", n, err)
		}
		levels = append(levels, l)
		from += n + oneByOne
	}
	s.print(helmTable(levels))
	return nil
}

// prepareHelm starts the component, with a repository.
func (s *session) prepareHelm(ctx context.Context, g *generator, repo *repository.Repository) error {
	random := rand.NewChaCha8([32]byte{})
	filler := make([]byte, chartSize*3/4*3/4) // Base64 enlarges it here, and once more in the Bundle.
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
	if err := s.env.StartHelm(ctx); err != nil {
		return err
	}
	return s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: %s, name: repository}
data: {ca.crt: %s}
`, g.namespace(0), base64.StdEncoding.EncodeToString(repo.CA)))
}

func proxyOf(n int) client.ObjectKey {
	return client.ObjectKey{Namespace: "bench-00", Name: fmt.Sprintf("bench-%d", n)}
}

// helmTemplate returns the template of the values, with a revision for Clusters without one of their own.
func helmTemplate(revision string) string {
	return fmt.Sprintf(`revision: {{ index .Cluster.metadata.labels %q | default %q }}
version: {{ .ControlPlane.spec.version }}
hosts:
{{- range $i := until 56 }}
- "{{ $i }}.{{ $.Cluster.metadata.name }}.{{ $.Cluster.spec.controlPlaneEndpoint.host }}/{{ $.InfraCluster.metadata.name }}/index.html"
{{- end }}
`, clusterLabel, revision)
}

// measureProxy deploys a HelmChartProxy to some Clusters at once. Then it changes single Clusters, and selects
// further ones, one after the other.
func (s *session) measureProxy(ctx context.Context, g *generator, repo *repository.Repository, from, n int) (l helmLevel, err error) {
	l.n = n
	proxy := proxyOf(n)
	choose := func(ctx context.Context, i int) error { return g.label(ctx, clusterFile, i, selectLabel, proxy.Name) }
	if err := g.each(ctx, from, from+n, choose); err != nil {
		return l, err
	}
	s.say("%d Clusters: deploy to all at once", n)
	begin := time.Now()
	if err := s.deployed(ctx, &l.all, proxy, n, func() error {
		return s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %s, name: %s}
spec:
  clusterSelector: {matchLabels: {%s: %[2]s}}
  repoURL: %[4]s
  chartName: bench
  version: 1.0.0
  tlsConfig: {caSecret: {name: repository}}
  valuesTemplate: %[5]q
`, proxy.Namespace, proxy.Name, selectLabel, repo.URL, helmTemplate("none")))
	}); err != nil {
		return l, err
	}
	l.took = l.all.requests.lastWrite().Sub(begin)
	s.say("%d Clusters: change %d one after the other", n, oneByOne)
	for c := range oneByOne {
		i, revision := from+c*n/oneByOne, fmt.Sprintf("at-%d", c)
		if err := s.deployed(ctx, &l.changed, proxy, n, func() error { return g.label(ctx, clusterFile, i, clusterLabel, revision) }); err != nil {
			return l, err
		}
		if err := s.hasValues(ctx, proxy, g.key(i), revision); err != nil {
			return l, err
		}
	}
	s.say("%d Clusters: select %d more, one after the other", n, oneByOne)
	for c := range oneByOne {
		if err := s.deployed(ctx, &l.added, proxy, n+c+1, func() error { return choose(ctx, from+n+c) }); err != nil {
			return l, err
		}
	}
	l.memory, err = s.atRest(ctx, helm)
	return l, err
}

// measureRollouts changes the values of all Clusters of a HelmChartProxy: at once, with a bound, and one after the
// other. One of the Clusters has no revision of its own.
func (s *session) measureRollouts(ctx context.Context, l *helmLevel, one client.ObjectKey, fleet *playedFleet) error {
	proxy, all := proxyOf(l.n), l.n+oneByOne
	patch := func(format string, args ...any) error {
		its := &addonsv1.HelmChartProxy{}
		its.Namespace, its.Name = proxy.Namespace, proxy.Name
		return s.admin.Patch(ctx, its, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...)))
	}
	l.many = all - min(l.n, oneByOne) // The others have a revision of their own.
	for _, its := range []struct {
		revision, rollout string
		cost              *helmCost
	}{{"whole", `null`, &l.whole}, {"bounded", `{"maxUnavailable":"25%"}`, &l.bounded}} {
		s.say("%d Clusters: change all, %s", l.n, its.revision)
		if err := s.deployed(ctx, &helmCost{}, proxy, all, func() error { return patch(`{"spec":{"rollout":%s}}`, its.rollout) }); err != nil {
			return err
		}
		if err := s.deployed(ctx, its.cost, proxy, all, func() error { return patch(`{"spec":{"valuesTemplate":%q}}`, helmTemplate(its.revision)) }); err != nil {
			return err
		}
		if err := s.hasValues(ctx, proxy, one, its.revision); err != nil {
			return err
		}
	}
	s.say("%d Clusters: let one after the other change", l.n)
	if err := s.deployed(ctx, &helmCost{}, proxy, all, func() error { return patch(`{"spec":{"rollout":{"maxUnavailable":1}}}`) }); err != nil {
		return err
	}
	fleet.isAway.Store(true)
	if _, err := s.during(ctx, helm, func(*phase) error { return patch(`{"spec":{"valuesTemplate":%q}}`, helmTemplate("steps")) }); err != nil {
		return err // Now all but one wait.
	}
	since := time.Now()
	p, err := s.during(ctx, helm, func(p *phase) error {
		fleet.isAway.Store(false)
		for len(fleet.since(since)) < steps+2 {
			if err := sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
			if time.Since(since) > patience {
				return fmt.Errorf("only %d Clusters have taken the change over", len(fleet.since(since)))
			}
		}
		return patch(`{"spec":{"rollout":null}}`)
	})
	if err != nil {
		return err
	}
	l.steps = p.requests.between(fleet.since(since)[1 : steps+2])
	return s.hasValues(ctx, proxy, one, "steps")
}

// deployed calls happen, and waits until muster-helm is quiet and the HelmChartProxy reports that it is deployed on
// this many Clusters. It adds the cost.
func (s *session) deployed(ctx context.Context, cost *helmCost, proxy client.ObjectKey, selected int, happen func() error) error {
	before, err := s.traffic(ctx)
	if err != nil {
		return err
	}
	p, err := s.during(ctx, helm, func(*phase) error { return happen() })
	for err == nil {
		its := &addonsv1.HelmChartProxy{}
		if err := s.admin.Get(ctx, proxy, its); err != nil {
			return err
		}
		if len(its.Status.MatchingClusters) == selected && meta.IsStatusConditionTrue(its.Status.Conditions, addonsv1.ReadyCondition) {
			break
		}
		if time.Since(p.start) > patience {
			return fmt.Errorf("%d Clusters: %+v", len(its.Status.MatchingClusters), its.Status.Conditions)
		}
		err = p.quiet(ctx)
	}
	if err != nil {
		return err
	}
	after, err := s.traffic(ctx)
	cost.requests, cost.cpu = append(cost.requests, p.requests...), cost.cpu+p.cpu
	cost.sent, cost.received = cost.sent+after.sent-before.sent, cost.received+after.received-before.received
	return err
}

// hasValues checks that a Cluster has its own values, of the measured size and of this revision.
func (s *session) hasValues(ctx context.Context, proxy, key client.ObjectKey, revision string) error {
	text := ""
	for slot := range 2 { // muster-helm deletes the one that the agent has read before.
		values := &corev1.ConfigMap{}
		err := s.admin.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: plan.ValuesName(proxy, key.Namespace, key.Name, slot)}, values)
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

// traffic returns the bytes that all clients sent to the API server for the resources in helmWrites, and the bytes
// that muster-helm read.
func (s *session) traffic(ctx context.Context) (cost helmCost, err error) {
	const sizes = "apiserver_request_body_size_bytes_sum"
	snapshot, err := metrics.Scrape(ctx, s.kube.RESTClient(), sizes)
	if err != nil {
		return cost, err
	}
	for _, resource := range helmWrites {
		cost.sent += snapshot.Sum(sizes, func(labels map[string]string) bool { return labels["resource"] == resource })
	}
	if cost.sent == 0 {
		return cost, errors.New("the API server does not say how much it is sent")
	}
	pid, err := s.pid(helm)
	if err == nil {
		cost.received, err = usage.Read(pid)
	}
	return cost, err
}

func helmTable(levels []helmLevel) table {
	t := table{title: "HelmChartProxies"}
	first, last := levels[0], levels[len(levels)-1]
	t.note("a HelmChartProxy for each number of Clusters, all in one namespace; a chart of %d KiB in its Bundles, values of %d KiB for each Cluster; the benchmark plays Fleet, which deploys at once", chartSize>>10, fewestValues>>10)
	t.note("one Cluster: the mean of %d whose values change, and of %d that are selected in addition, one after the other; baseline: with %d Clusters", oneByOne, oneByOne, first.n)
	t.note("bytes sent are the bodies of requests, by the API server's own metric; the played Fleet's are among those for Bundles: some 60 bytes each time that it takes one over. " +
		"Bytes received are all that the program reads, by the kernel: answers and watches of the API server, by TLS, leader election, and the answers of its workers")
	for _, l := range levels {
		for _, kind := range []struct {
			name string
			of   func(helmLevel) helmCost
		}{{"a value changes", func(l helmLevel) helmCost { return l.changed }}, {"one more", func(l helmLevel) helmCost { return l.added }}} {
			t.note("%d Clusters, %s: %s", l.n, kind.name, kind.of(l).requests)
			row := func(name, unit string, of func(helmCost) float64) figure {
				return value(fmt.Sprintf("%d Clusters, %s: %s", l.n, kind.name, name), unit, of(kind.of(l))).against(of(kind.of(first)))
			}
			t.add(
				row("processor time", "ms", func(c helmCost) float64 { return perOne(c.cpu, oneByOne) }).atMost(maxChange),
				row("sent", "KiB", func(c helmCost) float64 { return c.sent / oneByOne / 1024 }).atMost(maxChangeBytes),
				row("received", "KiB", func(c helmCost) float64 { return c.received / oneByOne / 1024 }),
				row("writes", "", func(c helmCost) float64 { return float64(len(c.requests.of(write))) / oneByOne }),
				row("GET and LIST", "", func(c helmCost) float64 { return float64(len(c.requests.of(read))) / oneByOne }),
			)
		}
		t.add(
			value(fmt.Sprintf("%d Clusters at once: until the last write", l.n), "s", l.took.Seconds()),
			value(fmt.Sprintf("%d Clusters at once: processor time", l.n), "s", l.all.cpu.Seconds()),
			value(fmt.Sprintf("%d Clusters: memory", l.n), "MiB", l.memory.Now),
		)
		t.note("%d Clusters, all change: %s; with maxUnavailable: %s; steps: %v", l.n, l.whole.requests, l.bounded.requests, l.steps)
		for _, kind := range []struct {
			name string
			cost helmCost
		}{{"all change", l.whole}, {"all change, maxUnavailable 25%", l.bounded}} {
			t.add(
				value(fmt.Sprintf("%d Clusters, %s: requests for each", l.n, kind.name), "", kind.cost.perOne(l.many)),
				value(fmt.Sprintf("%d Clusters, %s: processor time for each", l.n, kind.name), "ms", perOne(kind.cost.cpu, l.many)),
			)
		}
		t.add(value(fmt.Sprintf("%d Clusters, one change after the other: requests for a step, p50", l.n), "", median(l.steps)).
			against(median(first.steps)).atMost(maxStep))
	}
	t.add(value("memory for each selected Cluster", "KiB", (last.memory.Now-first.memory.Now)*1024/float64(deployedUpTo(levels)-first.n-oneByOne)))
	return t
}

// perOne returns the requests for one of many.
func (c helmCost) perOne(many int) float64 {
	return float64(len(c.requests.of(write))+len(c.requests.of(read))) / float64(many)
}

func median(counts []int) float64 {
	if len(counts) == 0 {
		return math.NaN()
	}
	return float64(slices.Sorted(slices.Values(counts))[len(counts)/2])
}

// deployedUpTo returns how many Clusters all HelmChartProxies select together.
func deployedUpTo(levels []helmLevel) (all int) {
	for _, l := range levels {
		all += l.n + oneByOne
	}
	return all
}
