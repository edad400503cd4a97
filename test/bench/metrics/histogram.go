package metrics

import (
	"math"
	"slices"
	"strconv"
)

// Histogram is what a histogram counted between two snapshots.
type Histogram struct {
	// Bounds are the buckets' upper bounds, the last one infinite; Counts are
	// cumulative, as they are exposed.
	Bounds []float64
	Counts []float64
	Sum    float64
}

// HistogramBetween returns what the histogram of a name counted from one snapshot to a
// later one, over all label sets that pass.
func HistogramBetween(before, after Snapshot, name string, pass func(labels map[string]string) bool) Histogram {
	counts := map[float64]float64{}
	for _, part := range []struct {
		snapshot Snapshot
		sign     float64
	}{{before, -1}, {after, 1}} {
		for _, sample := range part.snapshot {
			if sample.Name != name+"_bucket" || !pass(sample.Labels) {
				continue
			}
			bound, err := strconv.ParseFloat(sample.Labels["le"], 64)
			if err == nil {
				counts[bound] += part.sign * sample.Value
			}
		}
	}
	h := Histogram{Sum: after.Sum(name+"_sum", pass) - before.Sum(name+"_sum", pass)}
	for bound := range counts {
		h.Bounds = append(h.Bounds, bound)
	}
	slices.Sort(h.Bounds)
	for _, bound := range h.Bounds {
		h.Counts = append(h.Counts, counts[bound])
	}
	return h
}

// Count returns the number of observations.
func (h Histogram) Count() float64 {
	if len(h.Counts) == 0 {
		return 0
	}
	return h.Counts[len(h.Counts)-1]
}

// Mean returns the exact mean.
func (h Histogram) Mean() float64 { return h.Sum / h.Count() }

// Quantile interpolates within the bucket that the quantile falls into, as Prometheus
// does: it knows no more than the bucket's bounds.
func (h Histogram) Quantile(q float64) float64 {
	rank := q * h.Count()
	lower, below := 0.0, 0.0
	for i, bound := range h.Bounds {
		if h.Counts[i] >= rank && h.Counts[i] > below {
			if math.IsInf(bound, 1) {
				return lower
			}
			return lower + (bound-lower)*(rank-below)/(h.Counts[i]-below)
		}
		lower, below = bound, h.Counts[i]
	}
	return lower
}
