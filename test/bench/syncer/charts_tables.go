package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-fleet/muster/test/report"
)

const (
	// maxObject is how large any object may be, in KiB: a third of what etcd takes.
	maxObject = 512
	// maxChange and maxChangeBytes are the processor time in ms and the KiB that one Cluster
	// may take, however many are selected.
	maxChange      = 10
	maxChangeBytes = 16
)

func chartsTables(o options, levels []selectedLevel) []report.Table {
	if len(levels) == 0 {
		return nil
	}
	work := report.Table{Title: "Charts: requests, bytes and processor time, download " + o.download}
	work.Note("one HelmChartProxy in one namespace, a chart of %d KiB in its Bundles, values of %d KiB for each Cluster; the benchmark plays Fleet, which deploys at once", chartSize>>10, fewestValues>>10)
	work.Note("bytes are the bodies of requests, by the API server's own metric; the played Fleet's are among those for Bundles: some 60 bytes each time that it takes one over")
	size := report.Table{Title: "Charts: sizes and memory, download " + o.download}
	var settled, restarted, syncers []report.Point
	first := levels[0]
	for _, l := range levels {
		at := fmt.Sprintf(", %d Clusters", l.n)
		work.Note("%d Clusters, %d selected at once: %s; %s", l.n, l.atOnce.count, l.atOnce.requests, sizes(l.atOnce.bytes))
		work.Note("%d Clusters, %d selected one after the other: %s; %s", l.n, l.single.count, l.single.requests, sizes(l.single.bytes))
		work.Note("%d Clusters, %d changed one after the other: %s; %s", l.n, l.changed.count, l.changed.requests, sizes(l.changed.bytes))
		work.Note("%d Clusters, restart: %s", l.n, l.restart)
		for _, row := range []struct {
			name string
			work func(selectedLevel) chartsWork
		}{
			{"selected at once", func(l selectedLevel) chartsWork { return l.atOnce }},
			{"selected", func(l selectedLevel) chartsWork { return l.single }},
			{"changed", func(l selectedLevel) chartsWork { return l.changed }},
		} {
			its, before := row.work(l), row.work(first)
			work.Add(
				report.Value(row.name+", writes"+at, "", its.each(float64(len(its.requests.of(write, false))))).Against(before.each(float64(len(before.requests.of(write, false))))),
				report.Value(row.name+", GET and LIST"+at, "", its.each(float64(len(its.requests.of(read, false))))),
				report.Value(row.name+", bytes"+at, "KiB", its.each(its.sent())/1024).Against(before.each(before.sent())/1024).AtMost(maxChangeBytes),
				report.Value(row.name+", looks"+at, "", its.each(its.looks)),
				report.Value(row.name+", processor time"+at, "ms", perOne(its.cpu, its.count)).Against(perOne(before.cpu, before.count)).AtMost(maxChange),
				report.Value(row.name+", until the values are written, p50"+at, "ms", report.Milliseconds(report.Quantile(its.latency, .5))),
			)
		}
		work.Add(report.Value("writes at a restart"+at, "", float64(len(l.restart.of(write, true)))).AtMost(0))
		var all []string
		for _, kind := range slices.Sorted(maps.Keys(l.largest)) {
			all = append(all, fmt.Sprintf("%s %.1f KiB", kind, float64(l.largest[kind])/1024))
		}
		size.Note("%d Clusters, the largest of each kind: %s", l.n, strings.Join(all, ", "))
		size.Add(
			report.Value("largest object"+at, "KiB", float64(slices.Max(slices.Collect(maps.Values(l.largest))))/1024).AtMost(maxObject),
			report.Value("charts, settled"+at, "MiB", l.charts.Now),
			report.Value("charts, peak"+at, "MiB", l.charts.Peak),
			report.Value("charts, settled after a restart"+at, "MiB", l.restarted.Now),
			report.Value("charts, peak of a restart"+at, "MiB", l.restarted.Peak),
			report.Value("syncer, settled"+at, "MiB", l.syncer.Now).Against(l.imported.Now),
		)
		settled = append(settled, report.Point{X: float64(l.n), Y: l.charts.Now * 1024})
		restarted = append(restarted, report.Point{X: float64(l.n), Y: l.restarted.Now * 1024})
		syncers = append(syncers, report.Point{X: float64(l.n), Y: l.syncer.Now * 1024})
	}
	size.Note("baseline of the syncer: imported, before the Clusters are selected")
	size.Add(
		report.Value("charts' growth per Cluster", "KiB", report.Slope(settled)),
		report.Value("charts' growth per Cluster, after restarts", "KiB", report.Slope(restarted)),
		report.Value("syncer's growth per Cluster", "KiB", report.Slope(syncers)).AtMost(maxGrowth),
	)
	return []report.Table{work, size}
}

func (w chartsWork) each(of float64) float64 { return of / float64(w.count) }

func (w chartsWork) sent() float64 {
	total := 0.0
	for _, size := range w.bytes {
		total += size
	}
	return total
}

func sizes(of map[string]float64) string {
	var parts []string
	for _, resource := range slices.Sorted(maps.Keys(of)) {
		if of[resource] > 0 {
			parts = append(parts, fmt.Sprintf("%.0f KiB of %s", of[resource]/1024, resource))
		}
	}
	return strings.Join(parts, ", ")
}
