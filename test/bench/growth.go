package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/usage"
)

const (
	// specified is the number of Clusters that the bars of memory, in MiB, are for.
	specified  = 5000
	maxSyncer  = 300
	maxWebhook = 80
	// maxGrowth is in KiB for each Cluster.
	maxGrowth = 45
	// maxValues is how long, in ms, a change of a control plane may take to Fleet.
	maxValues = 1000
	// maxFanOut limits the time in which the syncer changes all Fleet Clusters, as a multiple of the time of one
	// write to each.
	maxFanOut = 3
	// maxLook limits the processor time for reconciling an unchanged Cluster, as a share of the time for filling
	// caches with one.
	maxLook = 0.2

	// These labels change: on a class, on a control plane, and on Fleet Clusters, which only the benchmark labels.
	classLabel        = "bench.example.com/class"
	controlPlaneLabel = "bench.example.com/control-plane"
	bareLabel         = "bench.example.com/bare"
)

// level holds the measurements with a number of imported Clusters.
type level struct {
	n       int
	imports burst
	// syncer, webhook and apiserver are the memory of these programs after the imports.
	syncer, webhook, apiserver usage.Memory
	// fanOut is how long it took until a label of all classes was on every Fleet Cluster.
	fanOut time.Duration
	values []time.Duration
}

// measureGrowth imports Clusters up to each of three numbers, and measures there what may grow; then it measures
// operations on all of them.
func measureGrowth(ctx context.Context, s *session) error {
	if err := s.enable(ctx, true); err != nil {
		return err
	}
	g := s.clusters("bench", namespaces, classes)
	if err := s.warmUp(ctx, g); err != nil {
		return err
	}
	var levels []level
	for _, n := range []int{s.n / 10, s.n * 2 / 5, s.n} {
		if n <= g.next {
			return fmt.Errorf("-n %d is too small: %d Clusters are there before anything is measured", s.n, g.next)
		}
		l, err := s.measureLevel(ctx, g, n)
		if err != nil {
			return fmt.Errorf("with %d Clusters: %w", n, err)
		}
		levels = append(levels, l)
	}
	s.print(growthTable(levels))
	least, err := s.measureLeast(ctx, g)
	if err != nil {
		return err
	}
	last := levels[len(levels)-1]
	fanOut := table{title: "A label of all classes changes"}
	fanOut.note("every Fleet Cluster changes; baseline: one write to each Fleet Cluster, %d at a time, while the syncer is stopped", workers)
	fanOut.add(value(fmt.Sprintf("%d reconciled again", last.n), "s", last.fanOut.Seconds()).against(least.writes.Seconds()).ratioAtMost(maxFanOut))
	s.print(fanOut)
	if err := s.measureUnchanged(ctx, g, least); err != nil {
		return err
	}
	newcomers := s.clusters("new", 2, classes)
	if err := s.measureStart(ctx, newcomers, least); err != nil {
		return err
	}
	return s.measureArrivals(ctx, g, newcomers)
}

func (s *session) measureLevel(ctx context.Context, g *generator, n int) (l level, err error) {
	l.n = n
	s.say("%d Clusters: import %d at once", n, n-g.next)
	if l.imports, err = s.importAtOnce(ctx, g, n-g.next); err != nil {
		return l, err
	}
	s.say("%d Clusters: memory", n)
	for process, into := range map[string]*usage.Memory{syncer: &l.syncer, webhook: &l.webhook} {
		if *into, err = s.atRest(ctx, process); err != nil {
			return l, err
		}
	}
	if l.apiserver, err = s.memory(apiserver); err != nil {
		return l, err
	}
	s.say("%d Clusters: a class changes, control planes change", n)
	p, err := s.during(ctx, syncer, func(p *phase) error { return s.relabelAll(ctx, p, g) })
	if err != nil {
		return l, err
	}
	l.fanOut = p.requests.lastWrite().Sub(p.start)
	l.values, err = s.measureValues(ctx, g)
	return l, err
}

// relabelAll changes a label of every class at once, and waits until every Fleet Cluster carries it.
func (s *session) relabelAll(ctx context.Context, p *phase, g *generator) error {
	s.labelled++
	for i := range g.classes {
		class := &clusterv1.ClusterClass{}
		class.Namespace, class.Name = classNamespace, className(i)
		if err := s.admin.Patch(ctx, class, labelPatch(classLabel, fmt.Sprint(s.labelled))); err != nil {
			return err
		}
	}
	return p.written(ctx, g.keys(0, g.next, p.start))
}

// measureValues changes control planes at a rate, and checks that the Fleet Clusters'
// template values have the last change.
func (s *session) measureValues(ctx context.Context, g *generator) ([]time.Duration, error) {
	const perSecond, most = 25, 250
	count, change := min(g.next, most), fmt.Sprintf("at-%d", g.next)
	p, err := s.follow(syncer)
	if err != nil {
		return nil, err
	}
	changed := map[client.ObjectKey]time.Time{}
	for i := range count {
		changed[g.key(i*g.next/count)] = p.start
	}
	if err := pace(ctx, perSecond, 0, count, func(ctx context.Context, i int) error {
		return g.label(ctx, controlPlaneFile, i*g.next/count, controlPlaneLabel, change)
	}); err != nil {
		return nil, err
	}
	result, err := p.latencies(ctx, changed)
	if err != nil {
		return nil, err
	}
	for key := range changed {
		var imported fleetv1.Cluster
		if err := s.admin.Get(ctx, key, &imported); err != nil {
			return nil, err
		}
		if got, _, _ := unstructured.NestedString(imported.Spec.TemplateValues.Data, "ControlPlane", "metadata", "labels", controlPlaneLabel); got != change {
			return nil, fmt.Errorf("the template values of %s have the change %q, not %q", key, got, change)
		}
	}
	return result, nil
}

func growthTable(levels []level) table {
	t := table{title: "Growth"}
	first, last := levels[0], levels[len(levels)-1]
	t.note("memory is VmRSS after the imports, when the program is idle and holds no less than 5 s before; baseline: with %d Clusters", first.n)
	t.note("a change of a KubeadmControlPlane: from the answer to it until that to the write of the Fleet Cluster, which was checked to have it")
	memory := func(f figure, n int, limit float64) figure {
		if n > specified {
			return f
		}
		return f.atMost(limit)
	}
	for _, l := range levels {
		row := func(name, unit string, of func(level) float64) figure {
			return value(fmt.Sprintf("%s, %d Clusters", name, l.n), unit, of(l)).against(of(first))
		}
		t.add(
			memory(row("syncer", "MiB", func(l level) float64 { return l.syncer.Now }), l.n, maxSyncer),
			memory(row("webhook", "MiB", func(l level) float64 { return l.webhook.Now }), l.n, maxWebhook),
			row(apiserver, "MiB", func(l level) float64 { return l.apiserver.Now }),
			row("imports at once", "/s", func(l level) float64 { return l.imports.perSecond() }),
			row("a class's change reaches all", "s", func(l level) float64 { return l.fanOut.Seconds() }),
			row("control plane to template values, p99", "ms", func(l level) float64 { return quantile(l.values, .99) }).atMost(maxValues),
		)
	}
	grown := (last.syncer.Now - first.syncer.Now) * 1024
	t.add(value("syncer's growth for a Cluster", "KiB", grown/float64(last.n-first.n)).atMost(maxGrowth))
	return t
}

// least is the least effort for any program that watches all Clusters, and writes to each.
type least struct {
	n int
	// filling is the processor time of a process that fills caches and does nothing else.
	filling time.Duration
	// writes is the time for one write to each Fleet Cluster, with as many at a time as the
	// syncer reconciles.
	writes time.Duration
}

// measureLeast measures with imported Clusters, while the syncer does not run.
func (s *session) measureLeast(ctx context.Context, g *generator) (l least, err error) {
	l.n = g.next
	s.say("%d Clusters: what is the least", l.n)
	if err := s.env.Stop(ctx, syncer); err != nil {
		return l, err
	}
	caches, err := startChild(ctx, "caches", s.env.Kubeconfig)
	if err != nil {
		return l, err
	}
	if l.filling, err = caches.end(); err != nil {
		return l, err
	}
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	begin := time.Now()
	for i := range l.n {
		group.Go(func() error {
			cluster := &fleetv1.Cluster{}
			cluster.Namespace, cluster.Name = g.key(i).Namespace, g.key(i).Name
			return s.admin.Patch(writing, cluster, labelPatch(bareLabel, "yes"))
		})
	}
	if err := group.Wait(); err != nil {
		return l, fmt.Errorf("labelling Fleet Clusters: %w", err)
	}
	l.writes = time.Since(begin)
	_, err = s.restartSyncer(ctx, l.n)
	return l, err
}

// measureUnchanged makes the syncer reconcile every Cluster twice, because new Clusters would get another name, and
// then the earlier name again. After that it resyncs constantly, and the status of some objects changes.
func (s *session) measureUnchanged(ctx context.Context, g *generator, least least) error {
	s.say("%d Clusters: nothing changes", g.next)
	var cpu time.Duration
	var asked requests
	for _, suffix := range []string{"-renamed", ""} {
		before, err := s.reconciles(ctx)
		if err != nil {
			return err
		}
		p, err := s.duringReconciles(ctx, before+g.next, func(*phase) error { return s.rename(ctx, suffix) })
		if err != nil {
			return err
		}
		cpu += p.cpu
		asked = slices.Concat(asked, p.requests)
	}
	resyncs, err := s.resync(ctx, g)
	if err != nil {
		return err
	}
	t := table{title: "Clusters that have not changed"}
	t.note("the FleetAddonConfig gets another spec.cluster.naming.suffix, and then that of before: each Cluster is reconciled twice, and none changes; " +
		"baseline of the processor time: a process that fills the same caches, keeps the names only and does nothing else, divided by the Clusters")
	t.add(
		value("processor time for one Cluster", "ms", perOne(cpu, 2*g.next)).against(perOne(least.filling, least.n)).ratioAtMost(maxLook),
		nothing("requests", asked),
		nothing("requests in resyncs, and when the status of control planes and Clusters changes", resyncs),
	)
	s.print(t)
	return nil
}

// resync runs the syncer with a short --sync-period for a while, and changes the status of some Clusters
// and control planes.
func (s *session) resync(ctx context.Context, g *generator) (requests, error) {
	const period, periods, most = 5 * time.Second, 4, 100
	patch := func(text string) error {
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: syncer}}
		if err := s.admin.Patch(ctx, deployment, client.RawPatch(types.JSONPatchType, []byte(text))); err != nil {
			return err
		}
		_, err := s.restartSyncer(ctx, g.next)
		return err
	}
	if err := patch(fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/containers/0/args/0","value":"--sync-period=%s"}]`, period)); err != nil {
		return nil, err
	}
	p, err := s.follow(syncer)
	if err != nil {
		return nil, err
	}
	for i := range min(g.next, most) {
		for _, file := range []string{controlPlaneFile, clusterFile} {
			status := fmt.Appendf(nil, `{"status":{"observedGeneration":%d}}`, time.Now().Unix())
			if err := s.admin.Status().Patch(ctx, g.object(file, i), client.RawPatch(types.MergePatchType, status)); err != nil {
				return nil, err
			}
		}
	}
	if err := sleep(ctx, periods*period); err != nil {
		return nil, err
	}
	if _, err := p.read(); err != nil {
		return nil, err
	}
	return p.requests, patch(`[{"op":"remove","path":"/spec/template/spec/containers/0/args/0"}]`)
}
