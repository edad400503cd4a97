package main

import (
	"context"
	"errors"
	"time"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	// minThroughput is how much of the bare client's throughput the syncer must reach.
	minThroughput = 0.9
	// maxLatency is how many times the bare client's p50 and p99 the syncer's may be.
	maxLatency       = 2
	besideCachesNote = "beside the bare client, another process keeps controller-runtime's caches of Clusters, Fleet Clusters, and what Clusters refer to, and does nothing else: together they are a client that watches, and whose decisions cost nothing"
)

// measureThroughput compares imports with a bare client that makes the same writes, on a
// stack of its own. The bare client works once before the syncer and once after it, half
// of the Clusters each time, beside a process that keeps caches, while the syncer does not
// run.
func measureThroughput(ctx context.Context, o options) (tables []report.Table, err error) {
	s, err := open(ctx, o, stack.Options{Profile: stack.API})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(tables)) }()
	g := s.generator()
	if err := s.configure(ctx, true); err != nil {
		return nil, err
	}
	next, err := s.warmUp(ctx, g)
	if err != nil {
		return nil, err
	}
	b, err := newBare(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := b.Prepare(ctx); err != nil {
		return nil, err
	}
	arms := &turns{session: s, bare: b}
	if err := arms.importAtOnce(ctx, next, nil); err != nil { // To warm up.
		return nil, err
	}

	s.say("import %d at once", o.burst)
	if err := arms.importAtOnce(ctx, o.burst/2, &arms.atOnce); err != nil {
		return nil, err
	}
	var ours burst
	if o.wants("throughput") {
		if err := s.create(ctx, g, next, next+o.burst); err != nil {
			return nil, err
		}
		if ours, err = s.importAtOnce(ctx, g, next, next+o.burst, "import-cpu.pprof"); err != nil {
			return nil, err
		}
		next += o.burst
	}
	if err := arms.importAtOnce(ctx, o.burst-o.burst/2, &arms.atOnce); err != nil {
		return nil, err
	}
	if o.wants("throughput") {
		tables = append(tables, importTable(o, ours, arms))
	}
	if o.wants("latency") {
		// Half of what the machine can do: near the whole the queue is measured, and not
		// who stands in it.
		table, err := s.compareSteadily(ctx, g, arms, next, next+o.steady, arms.atOnce.perSecond()/2)
		if err != nil {
			return tables, err
		}
		tables = append(tables, table)
	}
	return tables, nil
}

// compareSteadily imports at a rate: the bare client half of the Clusters before the
// syncer, and half after it.
func (s *session) compareSteadily(ctx context.Context, g *load.Generator, arms *turns, from, to int, rate float64) (table report.Table, err error) {
	count := to - from
	s.say("import %d at %.1f/s", count, rate)
	first, err := arms.importSteadily(ctx, count/2, rate)
	if err != nil {
		return table, err
	}
	if err := s.create(ctx, g, from, to); err != nil {
		return table, err
	}
	before, err := s.counts(ctx)
	if err != nil {
		return table, err
	}
	ours, err := s.importSteadily(ctx, g, from, to, rate, nil)
	if err != nil {
		return table, err
	}
	if err := s.quiet(ctx); err != nil {
		return table, err
	}
	after, err := s.counts(ctx)
	if err != nil {
		return table, err
	}
	second, err := arms.importSteadily(ctx, count-count/2, rate)
	if err != nil {
		return table, err
	}
	table = latencyTable(count, s.workers, rate, ours, append(first, second...))
	table.Add(report.Value("looks at the Cluster for one import", "", float64(after.looks-before.looks)/float64(count)))
	return table, nil
}

// turns is what the bare client did when it was its turn.
type turns struct {
	*session
	bare *bare
	next int
	// atOnce is what it imported at once.
	atOnce atOnce
}

// atOnce are imports that the bare client made at once.
type atOnce struct {
	count   int
	elapsed time.Duration
	// apiserver is the processor time that the API server used for them.
	apiserver time.Duration
}

func (a atOnce) perSecond() float64 { return float64(a.count) / a.elapsed.Seconds() }

// take makes Clusters for the bare client and lets it work, beside caches, while the syncer
// does not run.
func (t *turns) take(ctx context.Context, count int, work func(from, to int) error) error {
	from, to := t.next, t.next+count
	t.next = to
	if err := t.bare.create(ctx, from, to); err != nil {
		return err
	}
	if err := t.env.Stop(ctx, syncer); err != nil {
		return err
	}
	if err := t.beside(ctx, func() error { return work(from, to) }); err != nil {
		return err
	}
	return t.startSyncer(ctx)
}

// importAtOnce adds what it imports to a sum, unless that is nil.
func (t *turns) importAtOnce(ctx context.Context, count int, sum *atOnce) error {
	return t.take(ctx, count, func(from, to int) error {
		before, err := t.cpu(apiserver)
		if err != nil {
			return err
		}
		elapsed, err := t.bare.importAll(ctx, from, to)
		if err != nil {
			return err
		}
		after, err := t.cpu(apiserver)
		if sum != nil {
			sum.count, sum.elapsed, sum.apiserver = sum.count+count, sum.elapsed+elapsed, sum.apiserver+after-before
		}
		return err
	})
}

func (t *turns) importSteadily(ctx context.Context, count int, rate float64) (result latencies, err error) {
	err = t.take(ctx, count, func(from, to int) error {
		result, err = t.session.importSteadily(ctx, t.bare.Generator, from, to, rate, t.bare)
		return err
	})
	return result, err
}

func importTable(o options, ours burst, arms *turns) report.Table {
	table := report.Table{Title: "Import: all at once"}
	table.Note("%d Clusters of %d classes in %d namespaces; one write turns the import on and releases them all; %d reconciles at a time, as shipped",
		o.burst, o.classes, o.namespaces, o.workers)
	table.Note("baseline: a client that makes the same three writes of prepared content, %d imports at a time, while the syncer is stopped; half of its imports before, half after", o.workers)
	table.Note(besideCachesNote)
	writes := ours.requests.of(write, false)
	table.Note("requests of the syncer: %s", ours.requests)
	table.Add(
		report.Value("imports", "1/s", ours.perSecond()).Against(arms.atOnce.perSecond()).RatioAtLeast(minThroughput),
		report.Value("writes per import", "", ours.perImport(len(writes))).Against(3).AtMost(3),
		report.Value("GET and LIST", "", float64(len(ours.requests.of(read, false)))).AtMost(0),
		report.Value("processor time per import, syncer", "ms", report.Milliseconds(ours.cpu)/float64(ours.count)),
		report.Value("processor time per import, kube-apiserver", "ms", report.Milliseconds(ours.apiserver)/float64(ours.count)).
			Against(report.Milliseconds(arms.atOnce.apiserver)/float64(arms.atOnce.count)),
	)
	return table
}

func latencyTable(count, workers int, rate float64, ours, bare latencies) report.Table {
	table := report.Table{Title: "Import: at half the rate that the bare client reached at once"}
	table.Note("%d control planes initialized at %.1f/s; from the answer to that until the answer to the write of the Fleet Cluster, by the API server's audit log", count, rate)
	table.Note("baseline: a client that is told by whoever initializes the control plane, and makes the same three writes, %d imports at a time", workers)
	table.Note(besideCachesNote)
	compare := func(name string, at float64, ours, bare []time.Duration) report.Figure {
		return report.Value(name, "ms", report.Milliseconds(report.Quantile(ours, at))).
			Against(report.Milliseconds(report.Quantile(bare, at)))
	}
	table.Add(
		compare("initialized to imported, p50", .5, ours.written(), bare.written()).RatioAtMost(maxLatency),
		compare("initialized to imported, p99", .99, ours.written(), bare.written()).RatioAtMost(maxLatency),
		compare("… until the write was asked for, p50", .5, ours.asked(), bare.asked()),
		compare("… until the write was asked for, p99", .99, ours.asked(), bare.asked()),
	)
	return table
}
