package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/revision"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	// maxLook and maxStart are which part of the other revision's processor time the work
	// may take.
	maxLook  = 0.25
	maxStart = 0.333
)

// arm is one of the two revisions that are compared.
type arm struct {
	*session
	name   string
	looks  []look
	starts []look
	// filling is the processor time of filling caches alone, in all rounds.
	filling time.Duration
}

// measureAgainst compares the syncer with that of another revision. Each has a stack of its
// own with the same Clusters, imported by itself; of the two syncers only one runs at a time.
func measureAgainst(ctx context.Context, o options) (tables []report.Table, err error) {
	other, err := revision.Build(ctx, o.against)
	if err != nil {
		return nil, err
	}
	var arms []*arm
	defer func() {
		for _, a := range arms {
			err = errors.Join(err, a.close(nil))
		}
	}()
	for _, side := range []struct {
		name   string
		muster stack.Options
	}{
		{"this revision", stack.Options{}},
		{other.Commit[:12], stack.Options{Manifests: other.Manifests(), Binaries: other.Binaries}},
	} {
		side.muster.Profile = stack.API
		if o.dir != "" {
			side.muster.Dir = filepath.Join(o.dir, fmt.Sprintf("arm-%d", len(arms)))
		}
		s, err := open(ctx, o, side.muster)
		if err != nil {
			return nil, err
		}
		a := &arm{session: s, name: side.name}
		arms = append(arms, a)
		if err := a.prepare(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	for round := range o.rounds {
		for i := range arms {
			a := arms[(round+i)%len(arms)] // Each one is first in turns.
			a.say("round %d of %d: %s", round+1, o.rounds, a.name)
			if err := a.measure(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", a.name, err)
			}
		}
	}
	return []report.Table{againstTable(o, arms[0], arms[1])}, nil
}

func (a *arm) prepare(ctx context.Context) error {
	if err := a.configure(ctx, true); err != nil {
		return err
	}
	g := a.generator()
	have, err := a.warmUp(ctx, g)
	if err != nil {
		return err
	}
	if err := a.importAll(ctx, g, have, a.n); err != nil {
		return err
	}
	return a.env.Stop(ctx, syncer)
}

// measure starts the syncer, lets it look at all Clusters, and stops it; then it fills caches
// with the same objects.
func (a *arm) measure(ctx context.Context) error {
	started, err := a.startAndLook(ctx, a.n)
	if err != nil {
		return err
	}
	looked, err := a.measureLook(ctx, a.n)
	if err != nil {
		return err
	}
	if err := a.env.Stop(ctx, syncer); err != nil {
		return err
	}
	caches, err := a.fillCaches(ctx)
	if err != nil {
		return err
	}
	filled, err := caches.end()
	a.starts, a.looks, a.filling = append(a.starts, started), append(a.looks, looked), a.filling+filled
	return err
}

func againstTable(o options, ours, theirs *arm) report.Table {
	table := report.Table{Title: "Against revision " + theirs.name}
	table.Note("%d imported Clusters; baseline: %s with its own manifests, on a stack of its own beside this one; of the two syncers only one runs, in %d rounds, in turns", o.n, theirs.name, o.rounds)
	table.Note("start: from the start of the process until it has looked at all Clusters, by its own metrics, and is idle; look: the same after a change of spec.cluster.naming.suffix, twice in each round, divided by the Clusters")
	for _, a := range []*arm{ours, theirs} {
		table.Note("rounds of %s: look %s; start %s", a.name,
			each(a.looks, func(l look) string { return fmt.Sprintf("%.2f ms", l.perCluster()) }),
			each(a.starts, func(l look) string { return fmt.Sprintf("%.1f s", l.cpu.Seconds()) }))
	}
	table.Note("filling caches: a process with controller-runtime's caches of the Clusters, the Fleet Clusters, and what Clusters refer to, which keeps the names only and ends; the baseline is the other revision's whole start")
	start := func(a *arm) float64 { return sum(a.starts).cpu.Seconds() / float64(o.rounds) }
	table.Add(
		report.Value("processor time of looking at one unchanged", "ms", sum(ours.looks).perCluster()).
			Against(sum(theirs.looks).perCluster()).RatioAtMost(maxLook),
		report.Value("processor time of a start", "s", start(ours)).Against(start(theirs)).RatioAtMost(maxStart),
		report.Value("processor time of filling caches", "s", ours.filling.Seconds()/float64(o.rounds)).Against(start(theirs)),
	)
	for _, a := range []*arm{ours, theirs} {
		table.Add(sum(a.looks).all("looks, "+a.name), sum(a.starts).all("looks at starts, "+a.name))
		table.Add(nothing("requests, "+a.name, sum(a.looks).requests))
	}
	return table
}

func sum(looks []look) look {
	var all look
	for _, l := range looks {
		all.wanted, all.looks, all.cpu = all.wanted+l.wanted, all.looks+l.looks, all.cpu+l.cpu
		all.requests = append(all.requests, l.requests...)
	}
	return all
}

func each(looks []look, show func(look) string) string {
	shown := make([]string, 0, len(looks))
	for _, l := range looks {
		shown = append(shown, show(l))
	}
	return strings.Join(shown, ", ")
}
