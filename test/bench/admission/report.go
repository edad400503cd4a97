package main

import (
	"fmt"
	"time"

	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/report"
)

// maxRatio is how much more than a webhook that does nothing the stamp may cost.
const maxRatio = 1.3

func newTable(b *bench, before, after metrics.Snapshot, calls int, elapsed time.Duration) (*report.Table, error) {
	const duration = "apiserver_admission_webhook_admission_duration_seconds"
	of := func(name string) metrics.Histogram {
		return metrics.HistogramBetween(before, after, duration, func(labels map[string]string) bool { return labels["name"] == name })
	}
	stamped, noop := of(stampWebhook), of(noopWebhook)
	labels := metrics.HistogramBetween(before, after, "apiserver_mutating_admission_policy_check_duration_seconds",
		func(labels map[string]string) bool { return labels["policy"] == labelPolicy })
	creates := len(b.latencies[arms[0]])
	if int(labels.Count()) < creates {
		return nil, fmt.Errorf("%s: %v evaluations for %d creates", labelPolicy, labels.Count(), creates)
	}
	for name, h := range map[string]metrics.Histogram{stampWebhook: stamped, noopWebhook: noop} {
		if int(h.Count()) != creates || int(answered(before, after, name)) != creates {
			return nil, fmt.Errorf("%s: %v calls, %v of them answered, for %d creates", name, h.Count(), answered(before, after, name), creates)
		}
	}
	table := &report.Table{Title: "Admission of a Cluster"}
	table.Note("%d creates (dryRun=All, one at a time) through each, in rounds of %d that take turns, in %s; then as many again for the throughput",
		creates, roundOf, elapsed.Round(time.Second))
	table.Note("the API server's histogram has no bound below %g ms: of the stamp's calls %.2f%% are within it, of the no-op's %.2f%%; a quantile in there is interpolated from 0, means are exact",
		stamped.Bounds[0]*1000, 100*stamped.Counts[0]/stamped.Count(), 100*noop.Counts[0]/noop.Count())
	table.Note("client-side figures are those of the whole create; shares are without what a create costs with none of them; the baseline of what class-labels costs is the stamp")
	table.Add(
		compare("apiserver webhook p50", 1000*stamped.Quantile(.5), 1000*noop.Quantile(.5)),
		compare("apiserver webhook p99", 1000*stamped.Quantile(.99), 1000*noop.Quantile(.99)),
		compare("apiserver webhook mean", 1000*stamped.Mean(), 1000*noop.Mean()),
		report.Value("class-labels in the API server, mean", "ms", 1000*labels.Mean()).Against(1000*stamped.Mean()),
	)
	quantiles := []struct {
		name string
		at   float64
	}{{"p50", .5}, {"p99", .99}}
	for _, q := range quantiles {
		table.Add(compare("client create "+q.name, b.quantile(arms[0], q.at), b.quantile(arms[1], q.at)))
	}
	for _, q := range quantiles {
		none := b.quantile(arms[3], q.at)
		table.Add(
			report.Value("client, webhook's share "+q.name, "ms", b.quantile(arms[0], q.at)-none).Against(b.quantile(arms[1], q.at)-none),
			report.Value("client, class-labels' share "+q.name, "ms", b.quantile(arms[2], q.at)-none).Against(b.quantile(arms[0], q.at)-none))
	}
	table.Add(
		report.Value(fmt.Sprintf("creates, %d at a time", workers), "1/s", b.perSecond(arms[0])).Against(b.perSecond(arms[1])),
		report.Value("API calls by muster-webhook", "", float64(calls)).AtMost(0),
	)
	return table, nil
}

func compare(name string, value, baseline float64) report.Figure {
	return report.Value(name, "ms", value).Against(baseline).RatioAtMost(maxRatio)
}

// quantile returns a client-side latency in milliseconds.
func (b *bench) quantile(arm string, q float64) float64 {
	return report.Milliseconds(report.Quantile(b.latencies[arm], q))
}

// perSecond returns how many creates fit into a second, several at a time.
func (b *bench) perSecond(arm string) float64 {
	return float64(len(b.latencies[arm])) / b.together[arm].Seconds()
}
