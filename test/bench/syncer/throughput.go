package main

import (
	"context"
	"errors"
	"time"

	"github.com/muster-fleet/muster/test/bench/report"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	// minThroughput is how much of a bare client's throughput the syncer must reach.
	minThroughput = 0.7
	// maxLatency is how many times a bare client's p99 the syncer's may be.
	maxLatency = 3
)

// measureThroughput compares imports with a bare client that makes the same writes, on a
// stack of its own. The bare client works once before the syncer and once after it, half
// of the Clusters each time, while the syncer does not run.
func measureThroughput(ctx context.Context, o options) (tables []report.Table, err error) {
	s, err := open(ctx, o, stack.API)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(tables)) }()
	g := s.generator()
	if err := s.configure(ctx, true); err != nil {
		return nil, err
	}
	warm, err := s.warmUp(ctx, g)
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
	if err := arms.bareAtOnce(ctx, warm, false); err != nil { // To warm up.
		return nil, err
	}

	s.say("import %d at once", o.burst)
	if err := arms.bareAtOnce(ctx, o.burst/2, true); err != nil {
		return nil, err
	}
	if err := s.create(ctx, g, warm, warm+o.burst); err != nil {
		return nil, err
	}
	ours, err := s.importAtOnce(ctx, g, warm, warm+o.burst, "import-cpu.pprof")
	if err != nil {
		return nil, err
	}
	if err := arms.bareAtOnce(ctx, o.burst-o.burst/2, true); err != nil {
		return nil, err
	}
	atOnce := importTable(o, ours, arms)

	s.say("import %d at %g/s", o.steady, o.rate)
	if err := arms.bareSteadily(ctx, o.steady/2); err != nil {
		return nil, err
	}
	from := warm + o.burst
	if err := s.create(ctx, g, from, from+o.steady); err != nil {
		return nil, err
	}
	latency, err := s.importSteadily(ctx, g, from, from+o.steady, nil)
	if err != nil {
		return nil, err
	}
	if err := arms.bareSteadily(ctx, o.steady-o.steady/2); err != nil {
		return nil, err
	}
	return []report.Table{atOnce, latencyTable(o, latency, arms.latency)}, nil
}

// turns is what the bare client did when it was its turn.
type turns struct {
	*session
	bare    *bare
	next    int
	count   int
	elapsed time.Duration
	latency []time.Duration
}

// take makes Clusters for the bare client and lets it work while the syncer does not run.
func (t *turns) take(ctx context.Context, count int, work func(from, to int) error) error {
	from, to := t.next, t.next+count
	t.next = to
	if err := t.bare.create(ctx, from, to); err != nil {
		return err
	}
	if err := t.env.Stop(ctx, syncer); err != nil {
		return err
	}
	if err := work(from, to); err != nil {
		return err
	}
	return t.startSyncer(ctx)
}

func (t *turns) bareAtOnce(ctx context.Context, count int, measured bool) error {
	return t.take(ctx, count, func(from, to int) error {
		elapsed, err := t.bare.importAll(ctx, from, to, t.workers)
		if measured {
			t.count, t.elapsed = t.count+count, t.elapsed+elapsed
		}
		return err
	})
}

func (t *turns) bareSteadily(ctx context.Context, count int) error {
	return t.take(ctx, count, func(from, to int) error {
		latency, err := t.importSteadily(ctx, t.bare.Generator, from, to, t.bare)
		t.latency = append(t.latency, latency...)
		return err
	})
}

func importTable(o options, ours burst, arms *turns) report.Table {
	table := report.Table{Title: "Import: all at once"}
	table.Note("%d Clusters of %d classes in %d namespaces; one write turns the import on and releases them all; %d reconciles at a time, as shipped",
		o.burst, o.classes, o.namespaces, o.workers)
	table.Note("baseline: a client that makes the same three writes of prepared content, %d imports at a time, while the syncer is stopped; half of its imports before, half after", o.workers)
	writes := ours.requests.of(write, false)
	table.Note("requests of the syncer: %s", ours.requests)
	table.Add(
		report.Value("imports", "1/s", ours.perSecond()).Against(float64(arms.count)/arms.elapsed.Seconds()).RatioAtLeast(minThroughput),
		report.Value("writes per import", "", ours.perImport(len(writes))).Against(3).AtMost(3),
		report.Value("GET and LIST", "", float64(len(ours.requests.of(read, false)))).AtMost(0),
		report.Value("processor time per import", "ms", report.Milliseconds(ours.cpu)/float64(ours.count)),
	)
	return table
}

func latencyTable(o options, ours, bare []time.Duration) report.Table {
	table := report.Table{Title: "Import: at a rate"}
	table.Note("%d control planes initialized at %g/s; from the answer to that until the answer to the write of the Fleet Cluster, by the API server's audit log", o.steady, o.rate)
	table.Note("baseline: a client that is told by whoever initializes the control plane, and makes the same three writes")
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", .5}, {"p99", .99}} {
		f := report.Value("initialized to imported, "+q.name, "ms", report.Milliseconds(report.Quantile(ours, q.at))).
			Against(report.Milliseconds(report.Quantile(bare, q.at)))
		if q.name == "p99" {
			f = f.RatioAtMost(maxLatency)
		}
		table.Add(f)
	}
	return table
}
