package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
)

// level is what was measured with a number of imported Clusters.
type level struct {
	n       int
	imports burst
	latency latencies
	// syncer and webhook are their memory after the imports; restarted is the syncer's
	// after it started with all of them there.
	syncer, webhook, restarted usage.Memory
	apiserver, etcd            usage.Memory

	least     least
	unchanged unchanged
	changed   changed
	fanOut    burst
	values    latencies
	start     start
}

// steps are the three numbers of Clusters at which growth is measured.
func steps(n int) []int { return []int{n / 10, n * 2 / 5, n} }

// measureImported measures what is done with imported Clusters. Growth imports them up to
// each of three numbers, and measures the most there; the other tables need them all.
func measureImported(ctx context.Context, o options) (tables []report.Table, err error) {
	s, err := open(ctx, o, stack.Options{Profile: stack.API})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(tables)) }()
	if err := s.configure(ctx, true); err != nil {
		return nil, err
	}
	g := s.generator()
	have, err := s.warmUp(ctx, g)
	if err != nil {
		return nil, err
	}
	if o.wants("growth") {
		levels, err := s.measureGrowth(ctx, g, have)
		if tables = growthTables(o, levels); err != nil {
			return tables, err
		}
	} else {
		if err := s.importAll(ctx, g, have, o.n); err != nil {
			return nil, err
		}
		if tables, err = s.measureSome(ctx, g); err != nil {
			return tables, err
		}
	}
	if !o.wants("fanout") {
		return tables, nil
	}
	a, err := s.measureArrivals(ctx, g, o.n)
	if err != nil {
		return tables, err
	}
	return append(tables, arrivalsTable(a)), nil
}

// measureSome measures what growth measures, too.
func (s *session) measureSome(ctx context.Context, g *load.Generator) (tables []report.Table, err error) {
	l := level{n: s.n}
	if s.wants("look") || s.wants("start") {
		s.say("%d Clusters: what is the least", s.n)
		if l.least, err = s.measureLeast(ctx, g, s.n); err != nil {
			return tables, err
		}
	}
	if s.wants("look") {
		s.say("%d Clusters: look at them", s.n)
		if err := s.measureLooks(ctx, s.n, &l.unchanged); err != nil {
			return tables, err
		}
		tables = append(tables, lookTable([]level{l}))
	}
	if s.wants("start") {
		s.say("%d Clusters: start", s.n)
		if l.start, err = s.measureStart(ctx, s.n); err != nil {
			return tables, err
		}
		tables = append(tables, startTable([]level{l}))
	}
	return tables, nil
}

func (s *session) measureGrowth(ctx context.Context, g *load.Generator, have int) (levels []level, err error) {
	for i, n := range steps(s.n) {
		if n-have < 2 {
			return levels, fmt.Errorf("-n %d is too small: %d Clusters are there before anything is measured", s.n, have)
		}
		l, err := s.measureLevel(ctx, g, have, n, i == 0)
		if err != nil {
			return levels, fmt.Errorf("with %d Clusters: %w", n, err)
		}
		levels, have = append(levels, l), n
	}
	return levels, nil
}

func (s *session) measureLevel(ctx context.Context, g *load.Generator, have, n int, first bool) (l level, err error) {
	l.n = n
	steady := min((n-have)/2, s.steady)
	atOnce := n - have - steady
	if err := s.resetPeaks(); err != nil {
		return l, err
	}
	s.say("%d Clusters: import %d at once, then %d at %g/s", n, atOnce, steady, s.rate)
	if err := s.create(ctx, g, have, n); err != nil {
		return l, err
	}
	if l.imports, err = s.importAtOnce(ctx, g, have, have+atOnce, fmt.Sprintf("import-cpu-%d.pprof", n)); err != nil {
		return l, err
	}
	if l.latency, err = s.importSteadily(ctx, g, have+atOnce, n, s.rate, nil); err != nil {
		return l, err
	}
	s.say("%d Clusters: memory", n)
	if err := s.settledMemory(ctx, &l); err != nil {
		return l, err
	}
	s.say("%d Clusters: what is the least", n)
	if l.least, err = s.measureLeast(ctx, g, n); err != nil {
		return l, err
	}
	s.say("%d Clusters: nothing changes", n)
	if l.unchanged, err = s.measureUnchanged(ctx, g, n, first); err != nil {
		return l, err
	}
	s.say("%d Clusters: one changes, a class changes, control planes change", n)
	if l.changed, err = s.measureChanges(ctx, g, n); err != nil {
		return l, err
	}
	if l.fanOut, err = s.measureFanOut(ctx, g, n); err != nil {
		return l, err
	}
	if l.values, err = s.measureValues(ctx, g, n); err != nil {
		return l, err
	}
	s.say("%d Clusters: start", n)
	if l.start, err = s.measureStart(ctx, n); err != nil {
		return l, err
	}
	l.restarted, err = s.restartedMemory(ctx, n)
	return l, err
}

func (s *session) resetPeaks() error {
	for _, name := range []string{syncer, webhook} {
		id, err := pid(s.env, name)
		if err != nil {
			return err
		}
		if err := usage.ResetPeak(id); err != nil {
			return err
		}
	}
	return nil
}

// settledMemory waits until the syncer holds no less than before: Go gives memory back
// some time after it was used.
func (s *session) settledMemory(ctx context.Context, l *level) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	for name, into := range map[string]*usage.Memory{
		syncer: &l.syncer, webhook: &l.webhook, apiserver: &l.apiserver, "etcd": &l.etcd,
	} {
		var err error
		if *into, err = s.memory(name); err != nil {
			return err
		}
	}
	if err := s.save(ctx, webhook, "heap", fmt.Sprintf("webhook-heap-%d.pprof", l.n)); err != nil {
		return err
	}
	return s.save(ctx, syncer, "heap", fmt.Sprintf("heap-%d.pprof", l.n))
}

func (s *session) restartedMemory(ctx context.Context, n int) (usage.Memory, error) {
	if err := s.settle(ctx); err != nil {
		return usage.Memory{}, err
	}
	if err := s.save(ctx, syncer, "heap", fmt.Sprintf("heap-%d-restarted.pprof", n)); err != nil {
		return usage.Memory{}, err
	}
	return s.memory(syncer)
}

func (s *session) settle(ctx context.Context) error {
	if err := s.quiet(ctx); err != nil {
		return err
	}
	const look, looks, hardly = 5 * time.Second, 6, 0.01
	before, err := s.memory(syncer)
	if err != nil {
		return err
	}
	for range looks {
		if err := sleep(ctx, look); err != nil {
			return err
		}
		now, err := s.memory(syncer)
		if err != nil {
			return err
		}
		if before.Now-now.Now < hardly*before.Now {
			return nil
		}
		before = now
	}
	return nil
}

// atRest waits until a program does next to nothing and holds no less than before.
func (s *session) atRest(ctx context.Context, process string) (usage.Memory, error) {
	const look, looks, idle, hardly = 5 * time.Second, 24, 100 * time.Millisecond, 0.01
	var before usage.Memory
	var used time.Duration
	for range looks {
		if err := sleep(ctx, look); err != nil {
			return before, err
		}
		now, err := s.memory(process)
		if err != nil {
			return now, err
		}
		cpu, err := s.cpu(process)
		if err != nil {
			return now, err
		}
		if cpu-used < idle && before.Now-now.Now < hardly*before.Now {
			return now, nil
		}
		before, used = now, cpu
	}
	return before, fmt.Errorf("%s does not come to rest", process)
}
