package main

import (
	"fmt"
	"time"

	"github.com/muster-fleet/muster/test/report"
)

// Bars of memory in MiB for the specified number of Clusters, of its growth in KiB for
// each Cluster, and of the time until a change has reached Fleet in ms.
const (
	maxSyncer    = 300
	maxWebhook   = 80
	maxGrowth    = 45
	maxValuesP99 = 1000
	// maxFanOut is how many times as long as a write to each Fleet Cluster their change by
	// the syncer may take.
	maxFanOut = 3
)

// growthTables turns what was measured into tables: those of single numbers of Clusters,
// and how each figure grows.
func growthTables(o options, levels []level) []report.Table {
	if len(levels) == 0 {
		return nil
	}
	return []report.Table{
		requestsTable(levels), lookTable(levels), startTable(levels), fanOutTable(o, levels), valuesTable(levels), memoryTable(levels), growthTable(o, levels),
	}
}

func requestsTable(levels []level) report.Table {
	table := report.Table{Title: "Requests of the syncer"}
	table.Note("counted in the API server's audit log, by ServiceAccount; without those for itself: leader election, the FleetAddonConfig's status, discovery, questions about access")
	table.Note("informers list by watching; a watch is in the audit log when it ends: those at a restart are of the process that stopped")
	for _, l := range levels {
		at := fmt.Sprintf(", %d Clusters", l.n)
		table.Note("%d Clusters: import: %s", l.n, l.imports.requests)
		table.Add(
			report.Value("writes per import"+at, "", l.imports.perImport(len(l.imports.requests.of(write, false)))).AtMost(3),
			report.Value("GET and LIST of all imports"+at, "", float64(len(l.imports.requests.of(read, false)))).AtMost(0),
			nothing(fmt.Sprintf("requests after %d changes of status%s", l.unchanged.statusChanges, at), l.unchanged.status),
		)
		if l.unchanged.resyncs > 0 {
			table.Add(nothing(fmt.Sprintf("requests in %d resyncs%s", l.unchanged.resyncs, at), l.unchanged.resync))
		}
		started := l.start.look.requests
		table.Note("%d Clusters: restart: %s", l.n, started)
		table.Add(
			report.Value("writes at a restart"+at, "", float64(len(started.of(write, true)))).AtMost(0),
			report.Value("GETs at a restart"+at, "", float64(len(started.of(read, true)))).AtMost(0),
			report.Value("LISTs of informers at a restart"+at, "", float64(len(started.where(isInformersList)))),
			report.Value("writes of the FleetAddonConfig's status at a restart"+at, "", float64(len(started.where(isConfig)))),
			report.Value("questions about access at a restart"+at, "", float64(len(started.where(isQuestion)))),
		)
		table.Add(perChange(l, at).Against(perChange(levels[0], at).Value).RatioAtMost(1))
	}
	return table
}

func perChange(l level, at string) report.Figure {
	all := append(l.changed.requests.of(write, false), l.changed.requests.of(read, false)...)
	return report.Value("requests of one Cluster's change"+at, "", float64(len(all))/float64(l.changed.count))
}

// nothing is a figure of requests of which there should be none.
func nothing(name string, all requests) report.Figure {
	return report.Value(name, "", float64(len(all.of(write, false))+len(all.of(read, false)))).AtMost(0)
}

func fanOutTable(o options, levels []level) report.Table {
	table := report.Table{Title: "A label of the classes changes"}
	table.Note("all classes at once, so that every Fleet Cluster changes; until the last write")
	table.Note("baseline: one write to each Fleet Cluster, %d at a time, while the syncer is stopped", o.workers)
	for _, l := range levels {
		table.Note("%d Clusters: %s", l.n, l.fanOut.requests)
		table.Add(
			report.Value(fmt.Sprintf("time, %d Clusters", l.n), "s", l.fanOut.elapsed.Seconds()).Against(l.least.writes.Seconds()).RatioAtMost(maxFanOut),
			report.Value(fmt.Sprintf("writes per Cluster, %d Clusters", l.n), "", l.fanOut.perImport(len(l.fanOut.requests.of(write, false)))),
			report.Value(fmt.Sprintf("GET and LIST, %d Clusters", l.n), "", float64(len(l.fanOut.requests.of(read, false)))).AtMost(0),
		)
	}
	return table
}

func valuesTable(levels []level) report.Table {
	table := report.Table{Title: "A control plane changes"}
	table.Note("from the answer to the change of the KubeadmControlPlane until that to the write of the Fleet Cluster, at 25 changes/s; each Fleet Cluster was checked to have the change")
	for _, l := range levels {
		table.Add(
			report.Value(fmt.Sprintf("changed to template values, p50, %d Clusters", l.n), "ms", report.Milliseconds(report.Quantile(l.values.written(), .5))),
			report.Value(fmt.Sprintf("changed to template values, p99, %d Clusters", l.n), "ms", report.Milliseconds(report.Quantile(l.values.written(), .99))).AtMost(maxValuesP99),
		)
	}
	return table
}

func memoryTable(levels []level) report.Table {
	table := report.Table{Title: "Memory"}
	table.Note("VmRSS and VmHWM of /proc: settled is after the imports when the syncer is idle and holds no less than 5 s before; peak is the most since the level before; after a restart, both of the new process")
	table.Note("the bars are those for %d Clusters; smaller numbers are judged by them, too", specified)
	var settled, restarted []report.Point
	for _, l := range levels {
		at := fmt.Sprintf(", %d Clusters", l.n)
		bar := func(f report.Figure, limit float64) report.Figure {
			if l.n > specified {
				return f
			}
			return f.AtMost(limit)
		}
		table.Add(
			bar(report.Value("syncer, settled"+at, "MiB", l.syncer.Now), maxSyncer),
			bar(report.Value("syncer, peak"+at, "MiB", l.syncer.Peak), maxSyncer),
			bar(report.Value("syncer, settled after a restart"+at, "MiB", l.restarted.Now), maxSyncer),
			bar(report.Value("syncer, peak of a restart"+at, "MiB", l.restarted.Peak), maxSyncer),
			bar(report.Value("webhook, settled"+at, "MiB", l.webhook.Now), maxWebhook),
			bar(report.Value("webhook, peak"+at, "MiB", l.webhook.Peak), maxWebhook),
			report.Value(apiserver+at, "MiB", l.apiserver.Now),
			report.Value("etcd"+at, "MiB", l.etcd.Now),
		)
		settled = append(settled, report.Point{X: float64(l.n), Y: l.syncer.Now * 1024})
		restarted = append(restarted, report.Point{X: float64(l.n), Y: l.restarted.Now * 1024})
	}
	if len(levels) > 1 {
		table.Add(
			report.Value("syncer's growth per Cluster", "KiB", report.Slope(settled)).AtMost(maxGrowth),
			report.Value("syncer's growth per Cluster, after restarts", "KiB", report.Slope(restarted)).AtMost(maxGrowth),
		)
	}
	return table
}

// growthTable has, of each figure, the value at the largest number of Clusters, with that
// at the smallest as its baseline, and its slope.
func growthTable(o options, levels []level) report.Table {
	table := report.Table{Title: "Growth"}
	first, last := levels[0], levels[len(levels)-1]
	table.Note("value: with %d Clusters; baseline: with %d; each followed by its slope for 1000 Clusters more", last.n, first.n)
	table.Note("at once: %d, then the larger part of each step; at %g/s: the smaller part", first.imports.count, o.rate)
	for _, row := range []struct {
		name, unit string
		of         func(level) float64
	}{
		{"imports at once", "1/s", func(l level) float64 { return l.imports.perSecond() }},
		{"processor time of an import", "ms", func(l level) float64 { return perOne(l.imports.cpu, l.imports.count) }},
		{"initialized to imported at a rate, p50", "ms", func(l level) float64 { return report.Milliseconds(report.Quantile(l.latency.written(), .5)) }},
		{"initialized to imported at a rate, p99", "ms", func(l level) float64 { return report.Milliseconds(report.Quantile(l.latency.written(), .99)) }},
		{"processor time of looking at one unchanged", "ms", func(l level) float64 { return l.unchanged.look.perCluster() }},
		{"one Cluster's change to Fleet, p50", "ms", func(l level) float64 { return report.Milliseconds(report.Quantile(l.changed.latency.written(), .5)) }},
		{"processor time of one Cluster's change", "ms", func(l level) float64 { return perOne(l.changed.cpu, l.changed.count) }},
		{"a class's change, time per Cluster", "ms", func(l level) float64 { return perOne(l.fanOut.elapsed, l.n) }},
		{"control plane to template values, p99", "ms", func(l level) float64 { return report.Milliseconds(report.Quantile(l.values.written(), .99)) }},
		{"start until a Cluster is imported", "s", func(l level) float64 { return l.start.during.first.Seconds() }},
		{"processor time of a start", "s", func(l level) float64 { return l.start.look.cpu.Seconds() }},
	} {
		points := make([]report.Point, 0, len(levels))
		for _, l := range levels {
			points = append(points, report.Point{X: float64(l.n) / 1000, Y: row.of(l)})
		}
		table.Add(
			report.Value(row.name, row.unit, row.of(last)).Against(row.of(first)),
			report.Value("… for 1000 more", row.unit, report.Slope(points)),
		)
	}
	return table
}

func perOne(d time.Duration, count int) float64 { return report.Milliseconds(d) / float64(count) }
