// Package report is what a benchmark or a series of faults found out, for people, for
// programs and for pages. A benchmark's are tables of figures, each with what it is compared
// with and the bar it has to reach.
package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Verdicts of a figure that has a bar.
const (
	OK    = "ok"
	Short = "short"
)

// Figure is one line of a table.
type Figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// Baseline is what was measured for comparison in the same run, Ratio the value
	// divided by it.
	Baseline *float64 `json:"baseline,omitempty"`
	Ratio    *float64 `json:"ratio,omitempty"`
	// Bar is what is to be reached; nil judges nothing.
	Bar     *Bar   `json:"bar,omitempty"`
	Verdict string `json:"verdict,omitempty"`
}

// Bar is a limit of a figure's value or of its ratio.
type Bar struct {
	Limit   float64 `json:"limit"`
	OfRatio bool    `json:"ofRatio,omitempty"`
	// AtLeast makes it a lower limit.
	AtLeast bool `json:"atLeast,omitempty"`
}

// Value returns a figure that is not judged.
func Value(name, unit string, value float64) Figure {
	return Figure{Name: name, Unit: unit, Value: value}
}

// Against adds what the figure is compared with.
func (f Figure) Against(baseline float64) Figure {
	f.Baseline = &baseline
	if baseline != 0 {
		ratio := f.Value / baseline
		f.Ratio = &ratio
	}
	return f
}

// AtMost judges the value by an upper limit.
func (f Figure) AtMost(limit float64) Figure { return f.judge(Bar{Limit: limit}) }

// RatioAtMost judges the ratio by an upper limit.
func (f Figure) RatioAtMost(limit float64) Figure { return f.judge(Bar{Limit: limit, OfRatio: true}) }

// RatioAtLeast judges the ratio by a lower limit.
func (f Figure) RatioAtLeast(limit float64) Figure {
	return f.judge(Bar{Limit: limit, OfRatio: true, AtLeast: true})
}

// judge gives the verdict. A ratio that is missing (nothing to compare with was
// measured) or not a number reaches no bar.
func (f Figure) judge(bar Bar) Figure {
	f.Bar, f.Verdict = &bar, Short
	judged := &f.Value
	if bar.OfRatio {
		judged = f.Ratio
	}
	if judged != nil && (bar.AtLeast && *judged >= bar.Limit || !bar.AtLeast && *judged <= bar.Limit) {
		f.Verdict = OK
	}
	return f
}

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

// Grid is a heading and rows below it, of as many cells each. The first cell of a row says
// what the others are about.
type Grid struct {
	Heading []string
	Rows    [][]string
}

// Print writes it for people, in columns.
func (g Grid) Print(out io.Writer) {
	rows := append([][]string{g.Heading}, g.Rows...)
	widths := make([]int, len(g.Heading))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		fmt.Fprintf(out, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(out, "  %*s", widths[i+1], cell)
		}
		fmt.Fprintln(out)
	}
}

// Markdown writes it for a page.
func (g Grid) Markdown(out io.Writer) {
	line := func(cells []string) { fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | ")) }
	line(g.Heading)
	fmt.Fprintf(out, "|---|%s\n", strings.Repeat("--:|", len(g.Heading)-1))
	for _, row := range g.Rows {
		line(row)
	}
}
