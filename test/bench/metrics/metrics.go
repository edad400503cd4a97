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

// Sample is one line of what a server exposes.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Snapshot is all that a server exposed at one time.
type Snapshot []Sample

// Scrape reads the metrics of the API server: those of admission, and those with these prefixes.
func Scrape(ctx context.Context, client rest.Interface, prefixes ...string) (Snapshot, error) {
	body, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	return Parse(string(body), append(prefixes, "apiserver_admission_webhook_", "apiserver_mutating_admission_policy_")...)
}

// Parse reads those metrics in the text format that begin with one of the prefixes; there
// must be no labels among them whose values hold quotes or commas.
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

// Sum adds up the samples of a name whose labels pass; nil lets all pass.
func (s Snapshot) Sum(name string, pass func(labels map[string]string) bool) float64 {
	total := 0.0
	for _, sample := range s {
		if sample.Name == name && (pass == nil || pass(sample.Labels)) {
			total += sample.Value
		}
	}
	return total
}

// Histogram is what a histogram counted between two snapshots: observations up to each bound, the last
// one infinite.
type Histogram struct {
	upTo       map[float64]float64
	Count, Sum float64
}

// HistogramBetween returns what the histogram of a name counted from one snapshot to a
// later one, over all label sets that pass.
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

// Quantile interpolates within the bucket that the quantile falls into, as Prometheus
// does: it knows no more than the bucket's bounds.
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
