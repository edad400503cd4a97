package main

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-fleet/muster/test/report"
)

// maxLook is which part of the processor time that filling caches with a Cluster takes
// looking at it may take.
const maxLook = 0.2

// look is what it costs to look at Clusters that are as they should be.
type look struct {
	// wanted is how many were to be looked at, looks how many looks there were.
	wanted, looks int
	cpu           time.Duration
	requests      requests
}

// lookAtAll makes a change after which a number of Clusters is looked at.
func (s *session) lookAtAll(ctx context.Context, n int, change func(context.Context) error) (l look, err error) {
	before, err := s.counts(ctx)
	if err != nil {
		return l, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return l, err
	}
	if err := change(ctx); err != nil {
		return l, err
	}
	l.wanted = n
	l.looks, l.cpu, err = p.lookedAt(ctx, before, n)
	l.requests = p.requests
	return l, err
}

// lookedAt returns when a number of Clusters was looked at and the syncer is quiet, with the
// number of looks and the processor time since the phase began.
func (p *phase) lookedAt(ctx context.Context, before counts, n int) (looks int, cpu time.Duration, err error) {
	for progress := (progress{from: before}); ; {
		if err := p.quiet(ctx); err != nil {
			return 0, 0, err
		}
		// Before it is asked for its counts, which costs it something.
		if cpu, err = p.work(); err != nil {
			return 0, 0, err
		}
		now, err := p.session.counts(ctx)
		if err != nil {
			return 0, 0, err
		}
		if progress.over(now, n) {
			return now.looks - before.looks, cpu, nil
		}
	}
}

// measureLook lets the syncer look at every Cluster twice, because new ones would get
// another name, and then what they were called before.
func (s *session) measureLook(ctx context.Context, n int) (look, error) {
	var both look
	for _, suffix := range []string{"-renamed", ""} {
		one, err := s.lookAtAll(ctx, n, func(ctx context.Context) error { return s.rename(ctx, suffix) })
		if err != nil {
			return both, err
		}
		both.wanted, both.looks, both.cpu = both.wanted+n, both.looks+one.looks, both.cpu+one.cpu
		both.requests = append(both.requests, one.requests...)
	}
	return both, nil
}

func (l look) perCluster() float64 { return perOne(l.cpu, l.wanted) }

// all is a figure that is short if not every Cluster was looked at: then the others mean
// nothing.
func (l look) all(name string) report.Figure {
	return report.Value(name, "", float64(l.looks)).Against(float64(l.wanted)).RatioAtLeast(1)
}

func lookTable(levels []level) report.Table {
	table := report.Table{Title: "Looking at Clusters that have not changed"}
	table.Note("the FleetAddonConfig gets another spec.cluster.naming.suffix, and then that of before: it concerns the syncer, and changes no Cluster that is there; until each was looked at twice, by the syncer's own metrics, and it is idle")
	table.Note("baseline of the processor time: a process that fills the same caches, keeps the names only and does nothing else, divided by the Clusters")
	table.Note("a change that concerns the webhook only: spec.policy.crossNamespaceClass")
	for _, l := range levels {
		at := fmt.Sprintf(", %d Clusters", l.n)
		table.Add(
			report.Value("processor time for one Cluster"+at, "ms", l.unchanged.look.perCluster()).Against(l.fillingEach()).RatioAtMost(maxLook),
			l.unchanged.look.all("looks at Clusters"+at),
			nothing("requests"+at, l.unchanged.look.requests),
			report.Value("processor time of a change that concerns the webhook only"+at, "ms", report.Milliseconds(l.unchanged.elsewhere.cpu)),
			report.Value("looks at Clusters after it"+at, "", float64(l.unchanged.elsewhere.looks)),
			nothing("requests after it"+at, l.unchanged.elsewhere.requests),
		)
	}
	return table
}
