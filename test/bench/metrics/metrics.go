// Package metrics reads the metrics of the API server and of Muster's programs, for tests
// and benchmarks.
package metrics

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

// Sample is one line of a server's metrics.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Snapshot holds all metrics of a server at one time.
type Snapshot []Sample

// Scrape reads the metrics of the API server about admission, and the metrics with these prefixes.
func Scrape(ctx context.Context, client rest.Interface, prefixes ...string) (Snapshot, error) {
	body, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	return Parse(string(body), append(prefixes, "apiserver_admission_webhook_", "apiserver_mutating_admission_policy_")...)
}

// Parse reads the metrics in text format whose names begin with one of the prefixes. Their label values must not
// contain quotes or commas.
func Parse(text string, prefixes ...string) (Snapshot, error) {
	var snapshot Snapshot
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[end+1:]), 64)
		if err != nil {
			return nil, fmt.Errorf("metrics line %q: %w", line, err)
		}
		name, labels, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line[:end]), "}"), "{")
		sample := Sample{Name: name, Labels: map[string]string{}, Value: value}
		for pair := range strings.SplitSeq(labels, ",") {
			key, quoted, _ := strings.Cut(pair, "=")
			sample.Labels[key] = strings.Trim(quoted, `"`)
		}
		snapshot = append(snapshot, sample)
	}
	return snapshot, nil
}

// Sum adds up the samples of a name whose labels pass; if pass is nil, all do.
func (s Snapshot) Sum(name string, pass func(labels map[string]string) bool) float64 {
	total := 0.0
	for _, sample := range s {
		if sample.Name == name && (pass == nil || pass(sample.Labels)) {
			total += sample.Value
		}
	}
	return total
}

// Histogram holds the observations of a histogram between two snapshots, up to each bound; the last bound is
// infinite.
type Histogram struct {
	upTo       map[float64]float64
	Count, Sum float64
}

// HistogramBetween returns the observations of a histogram from one snapshot to a later one, over all label sets that
// pass.
func HistogramBetween(before, after Snapshot, name string, pass func(labels map[string]string) bool) Histogram {
	h := Histogram{upTo: map[float64]float64{}, Sum: after.Sum(name+"_sum", pass) - before.Sum(name+"_sum", pass)}
	for sign, snapshot := range map[float64]Snapshot{-1: before, 1: after} {
		for _, sample := range snapshot {
			bound, err := strconv.ParseFloat(sample.Labels["le"], 64)
			if err == nil && sample.Name == name+"_bucket" && pass(sample.Labels) {
				h.upTo[bound] += sign * sample.Value
			}
		}
	}
	h.Count = h.upTo[math.Inf(1)]
	return h
}

// Mean returns the exact mean.
func (h Histogram) Mean() float64 { return h.Sum / h.Count }

// Quantile interpolates within the bucket of the quantile, as Prometheus does, because it knows only the bucket's
// bounds.
func (h Histogram) Quantile(q float64) float64 {
	rank := q * h.Count
	lower, below := 0.0, 0.0
	for _, bound := range slices.Sorted(maps.Keys(h.upTo)) {
		if count := h.upTo[bound]; count >= rank && count > below {
			if math.IsInf(bound, 1) {
				return lower
			}
			return lower + (bound-lower)*(rank-below)/(count-below)
		}
		lower, below = bound, h.upTo[bound]
	}
	return lower
}
