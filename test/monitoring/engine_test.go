package monitoring

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// interval is how often is scraped and evaluated.
const interval = 30 * time.Second

var (
	epoch  = time.Unix(0, 0).UTC()
	engine = promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: queries,
	})
)

// alert is one that fires.
type alert struct {
	labels, annotations map[string]string
}

// firing evaluates a rule from the beginning up to a time, as Prometheus would, and
// returns what fires then, and whether anything ever did. (Prometheus's own package for
// this would bring the clients of every cloud.)
func firing(t *testing.T, rule rulefmt.Rule, stored *series, at time.Duration) (result []alert, ever bool) {
	t.Helper()
	since := map[uint64]time.Duration{}
	for now := time.Duration(0); now <= at; now += interval {
		query, err := engine.NewInstantQuery(t.Context(), stored, nil, rule.Expr, epoch.Add(now))
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		active := map[uint64]time.Duration{}
		result = nil
		for _, sample := range vector {
			key := sample.Metric.Hash()
			active[key] = now
			if begin, ok := since[key]; ok {
				active[key] = begin
			}
			if now-active[key] >= time.Duration(rule.For) {
				ever = true
				result = append(result, expand(t, rule, sample, now))
			}
		}
		since = active
		query.Close()
	}
	return result, ever
}

// expand fills in the templates of a rule.
func expand(t *testing.T, rule rulefmt.Rule, sample promql.Sample, now time.Duration) alert {
	t.Helper()
	data := template.AlertTemplateData(sample.Metric.Map(), nil, "", sample)
	fill := func(text string) string {
		text = "{{$labels := .Labels}}{{$value := .Value}}" + text
		filled, err := template.NewTemplateExpander(t.Context(), text, rule.Alert, data, model.TimeFromUnix(int64(now.Seconds())), nil, nil, nil).Expand()
		if err != nil {
			t.Errorf("%s: %v", rule.Alert, err)
		}
		return filled
	}
	result := alert{labels: sample.Metric.Map(), annotations: map[string]string{}}
	delete(result.labels, model.MetricNameLabel)
	for name, text := range rule.Labels {
		result.labels[name] = fill(text)
	}
	for name, text := range rule.Annotations {
		result.annotations[name] = fill(text)
	}
	return result
}

// series is a storage for series in the notation of promtool's tests.
type series struct{ stored []storage.Series }

var _ storage.Queryable = (*series)(nil)

// add stores a series: `metric{label="value"}` and `0+1x10 _ stale`.
func (s *series) add(name, values string) error {
	if strings.HasPrefix(values, "0x") || strings.Contains(values, " 0x") {
		return fmt.Errorf("%s: 0x10 is a hexadecimal number; ten zeros are 0+0x10", name)
	}
	metric, samples, err := queries.ParseSeriesDesc(name + " " + values)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var list []chunks.Sample
	for i, value := range samples {
		if !value.Omitted {
			list = append(list, sample{int64(i) * interval.Milliseconds(), value.Value})
		}
	}
	s.stored = append(s.stored, storage.NewListSeries(metric, list))
	return nil
}

// Querier reads from the storage.
func (s *series) Querier(_, _ int64) (storage.Querier, error) { return querier{s}, nil }

type querier struct{ *series }

// Select returns the series that match.
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{}
	for _, one := range q.stored {
		matches := true
		for _, matcher := range matchers {
			matches = matches && matcher.Matches(one.Labels().Get(matcher.Name))
		}
		if matches {
			set.rest = append(set.rest, one)
		}
	}
	return set
}

// LabelValues is not asked for by queries.
func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames is not asked for by queries.
func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Close does nothing.
func (querier) Close() error { return nil }

type seriesSet struct {
	current storage.Series
	rest    []storage.Series
}

func (s *seriesSet) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.current, s.rest = s.rest[0], s.rest[1:]
	return true
}
func (s *seriesSet) At() storage.Series                { return s.current }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// sample is a value at a time, in milliseconds.
type sample struct {
	t int64
	f float64
}

func (s sample) T() int64                      { return s.t }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.f }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// The storage and the evaluation are ours: that `for`, gaps and stale series are
// Prometheus's is worth a test.
func TestFiring(t *testing.T) {
	rule := rulefmt.Rule{Alert: "A", Expr: "a > 1", For: model.Duration(2 * time.Minute), Annotations: map[string]string{"s": "{{ $value }} of {{ $labels.l }}"}}
	for name, test := range map[string]struct {
		values string
		want   string
	}{
		"long enough":             {"0 2x4", "2 of x"},
		"not long enough":         {"0+0x1 2x3", ""},
		"over again":              {"2x2 0 2x2", ""},
		"a gap":                   {"2 _x4", "2 of x"},
		"gone":                    {"2x3 stale", ""},
		"the last value is shown": {"2x4 7", "7 of x"},
	} {
		t.Run(name, func(t *testing.T) {
			stored := &series{}
			if err := stored.add(`a{l="x"}`, test.values); err != nil {
				t.Fatal(err)
			}
			var got []string
			alerts, _ := firing(t, rule, stored, 5*interval)
			for _, one := range alerts {
				got = append(got, one.annotations["s"])
			}
			if strings.Join(got, ",") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
