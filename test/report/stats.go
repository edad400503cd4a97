package report

import (
	"math"
	"slices"
	"time"
)

// Quantile returns a quantile of durations by the nearest rank: an observation that was
// made, never one in between. Of none it is as long as can be, which reaches no bar.
func Quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return math.MaxInt64
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// Milliseconds returns a duration as a figure's value.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Point is a value at a size.
type Point struct{ X, Y float64 }

// Slope returns the slope of the least-squares line through points, 0 for fewer than two
// sizes.
func Slope(points []Point) float64 {
	var meanX, meanY float64
	for _, p := range points {
		meanX += p.X / float64(len(points))
		meanY += p.Y / float64(len(points))
	}
	var covariance, variance float64
	for _, p := range points {
		covariance += (p.X - meanX) * (p.Y - meanY)
		variance += (p.X - meanX) * (p.X - meanX)
	}
	if variance == 0 {
		return 0
	}
	return covariance / variance
}
