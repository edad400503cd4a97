package monitoring

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
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
func firing(t *testing.T, rule rulefmt.Rule, stored storage.Queryable, at time.Duration) (result []alert, ever bool) {
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

// storageOf stores series in the notation of promtool's tests: `metric{label="value"}` and
// `0+1x10 _ stale`. The programs that are always there are up, unless their `up` is given.
func storageOf(t *testing.T, given map[string]string) storage.Queryable {
	t.Helper()
	var stored []storage.Series
	up := map[string]bool{}
	add := func(name, values string) {
		if strings.HasPrefix(values, "0x") || strings.Contains(values, " 0x") {
			t.Fatalf("%s: 0x10 is a hexadecimal number; ten zeros are 0+0x10", name)
		}
		metric, samples, err := queries.ParseSeriesDesc(name + " " + values)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if metric.Get(model.MetricNameLabel) == "up" {
			up[metric.Get(model.JobLabel)] = true
		}
		series := promql.Series{Metric: metric}
		for i, value := range samples {
			if !value.Omitted {
				series.Floats = append(series.Floats, promql.FPoint{T: int64(i) * interval.Milliseconds(), F: value.Value})
			}
		}
		stored = append(stored, promql.NewStorageSeries(series))
	}
	for name, values := range given {
		add(name, values)
	}
	for _, job := range []string{"muster-syncer", "muster-webhook"} {
		if !up[job] {
			add(fmt.Sprintf("up{job=%q}", job), "1x1000")
		}
	}
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			set := &seriesSet{SeriesSet: storage.EmptySeriesSet(), at: -1}
			for _, one := range stored {
				if labels.Selector(matchers).Matches(one.Labels()) {
					set.all = append(set.all, one)
				}
			}
			return set
		},
	}}
}

type seriesSet struct {
	storage.SeriesSet
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool         { s.at++; return s.at < len(s.all) }
func (s *seriesSet) At() storage.Series { return s.all[s.at] }

// The evaluation is ours: that `for`, gaps and stale series are Prometheus's is worth a test.
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
			alerts, _ := firing(t, rule, storageOf(t, map[string]string{`a{l="x"}`: test.values}), 5*interval)
			var got []string
			for _, one := range alerts {
				got = append(got, one.annotations["s"])
			}
			if strings.Join(got, ",") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
