package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/muster-fleet/muster/test/bench/metrics"
)

// maxRatio is how much more than a webhook that does nothing the stamp may cost.
const maxRatio = 1.3

// figure is one line of the report. A bar of nil judges nothing.
type figure struct {
	Name     string   `json:"name"`
	Unit     string   `json:"unit"`
	Value    float64  `json:"value"`
	Baseline *float64 `json:"baseline,omitempty"`
	Ratio    *float64 `json:"ratio,omitempty"`
	Bar      *float64 `json:"bar,omitempty"`
	Verdict  string   `json:"verdict,omitempty"`
}

// report is what a run found out.
type report struct {
	Creates  int      `json:"creates"`
	Elapsed  string   `json:"elapsed"`
	Notes    []string `json:"notes"`
	Figures  []figure `json:"figures"`
	AllGood  bool     `json:"ok"`
	Measured string   `json:"measured"`
}

func newReport(b *bench, before, after metrics.Snapshot, calls int, elapsed time.Duration) (*report, error) {
	const duration = "apiserver_admission_webhook_admission_duration_seconds"
	of := func(name string) metrics.Histogram {
		return metrics.HistogramBetween(before, after, duration, func(labels map[string]string) bool { return labels["name"] == name })
	}
	stamped, noop := of(stampWebhook), of(noopWebhook)
	creates := len(b.latencies[arms[0]])
	for name, h := range map[string]metrics.Histogram{stampWebhook: stamped, noopWebhook: noop} {
		if int(h.Count()) != creates || int(answered(before, after, name)) != creates {
			return nil, fmt.Errorf("%s: %v calls, %v of them answered, for %d creates", name, h.Count(), answered(before, after, name), creates)
		}
	}
	r := &report{Creates: creates, Elapsed: elapsed.Round(time.Millisecond).String(), Measured: time.Now().UTC().Format(time.RFC3339), AllGood: true}
	r.Notes = []string{
		fmt.Sprintf("%d creates (dryRun=All, one at a time) through each webhook, in rounds of %d that take turns", creates, roundOf),
		fmt.Sprintf("the API server's histogram has no bound below %g ms: of the stamp's calls %.2f%% are within it, of the no-op's %.2f%%; a quantile in there is interpolated from 0, means are exact",
			stamped.Bounds[0]*1000, 100*stamped.Counts[0]/stamped.Count(), 100*noop.Counts[0]/noop.Count()),
		"client-side figures are those of the whole create; the last two are without what a create costs with neither webhook",
	}
	r.compare("apiserver webhook p50", 1000*stamped.Quantile(.5), 1000*noop.Quantile(.5), true)
	r.compare("apiserver webhook p99", 1000*stamped.Quantile(.99), 1000*noop.Quantile(.99), true)
	r.compare("apiserver webhook mean", 1000*stamped.Mean(), 1000*noop.Mean(), true)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", .5}, {"p99", .99}} {
		r.compare("client create "+q.name, b.quantile(arms[0], q.at), b.quantile(arms[1], q.at), true)
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", .5}, {"p99", .99}} {
		none := b.quantile(arms[2], q.at)
		r.compare("client, webhook's share "+q.name, b.quantile(arms[0], q.at)-none, b.quantile(arms[1], q.at)-none, false)
	}
	zero := 0.0
	r.add(figure{Name: "API calls by muster-webhook", Unit: "calls", Value: float64(calls), Bar: &zero}, calls == 0)
	return r, nil
}

func (r *report) compare(name string, value, baseline float64, judged bool) {
	ratio, bar := value/baseline, maxRatio
	f := figure{Name: name, Unit: "ms", Value: value, Baseline: &baseline, Ratio: &ratio}
	if judged {
		f.Bar = &bar
	}
	r.add(f, ratio <= bar)
}

func (r *report) add(f figure, good bool) {
	if f.Bar != nil {
		f.Verdict = "ok"
		if !good {
			f.Verdict, r.AllGood = "short", false
		}
	}
	r.Figures = append(r.Figures, f)
}

func (r *report) print(out io.Writer) {
	for _, note := range r.Notes {
		fmt.Fprintln(out, "#", note)
	}
	fmt.Fprintf(out, "%-32s %10s %10s %7s %6s  %s\n", "name", "value", "baseline", "ratio", "bar", "")
	number := func(format string, value *float64) string {
		if value == nil {
			return "-"
		}
		return fmt.Sprintf(format, *value)
	}
	for _, f := range r.Figures {
		fmt.Fprintf(out, "%-32s %10s %10s %7s %6s  %s\n", f.Name+" ("+f.Unit+")", number("%.3f", &f.Value),
			number("%.3f", f.Baseline), number("%.2f", f.Ratio), number("%.1f", f.Bar), f.Verdict)
	}
}

// quantile returns a client-side latency in milliseconds.
func (b *bench) quantile(arm string, q float64) float64 {
	sorted := slices.Sorted(slices.Values(b.latencies[arm]))
	return float64(sorted[int(q*float64(len(sorted)-1))]) / float64(time.Millisecond)
}
