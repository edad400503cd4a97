package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Verdicts of a figure that has a bar.
const (
	reached = "ok"
	missed  = "**short**"
)

// figure is one line of a table.
type figure struct {
	name, unit string
	value      float64
	// baseline is the comparison value from the same run.
	baseline     float64
	compared     bool
	bar, verdict string
}

func value(name, unit string, v float64) figure { return figure{name: name, unit: unit, value: v} }

// against adds the value to compare with.
func (f figure) against(baseline float64) figure {
	f.baseline, f.compared = baseline, true
	return f
}

// ratio is not a number, and so misses every bar, if there is nothing to compare with.
func (f figure) ratio() float64 {
	if f.baseline == 0 {
		return math.NaN()
	}
	return f.value / f.baseline
}

func (f figure) atMost(limit float64) figure {
	return f.judge("≤", limit, f.unit, f.value <= limit)
}

func (f figure) ratioAtMost(limit float64) figure {
	return f.judge("≤", limit, "×", f.ratio() <= limit)
}

func (f figure) ratioAtLeast(limit float64) figure {
	return f.judge("≥", limit, "×", f.ratio() >= limit)
}

func (f figure) judge(sign string, limit float64, unit string, isReached bool) figure {
	f.bar, f.verdict = strings.TrimSpace(fmt.Sprintf("%s %g %s", sign, limit, unit)), missed
	if isReached {
		f.verdict = reached
	}
	return f
}

// table is a group of figures.
type table struct {
	title   string
	notes   []string
	figures []figure
}

// note adds a sentence on how the table was measured.
func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

func (t *table) add(figures ...figure) { t.figures = append(t.figures, figures...) }

// print writes the table as Markdown that is also readable as plain text.
func (t *table) print(out io.Writer) {
	fmt.Fprintf(out, "\n### %s\n\n", t.title)
	for _, note := range t.notes {
		fmt.Fprintf(out, "- %s\n", note)
	}
	fmt.Fprintln(out)
	columns := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(columns, "|\t| value\t| baseline\t| ratio\t| bar\t|\t|")
	fmt.Fprintln(columns, "|---\t|--:\t|--:\t|--:\t|---\t|---\t|")
	for _, f := range t.figures {
		baseline, ratio := "", ""
		if f.compared {
			baseline = number(f.baseline, f.unit)
		}
		if f.compared && f.baseline != 0 {
			ratio = fmt.Sprintf("%.2f", f.ratio())
		}
		fmt.Fprintf(columns, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n", f.name, number(f.value, f.unit), baseline, ratio, f.bar, f.verdict)
	}
	_ = columns.Flush() // It goes to a terminal, like the rest.
}

// number keeps about three figures, and whole counts whole.
func number(v float64, unit string) string {
	decimals := 0
	if v != math.Trunc(v) {
		decimals = min(max(2-int(math.Floor(math.Log10(math.Abs(v)))), 0), 3)
	}
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if unit != "" {
		text += " " + unit
	}
	return text
}

// quantile returns a quantile of durations in ms by the nearest rank: it is always an actual observation. Without
// observations it is not a number, which misses every bar.
func quantile(values []time.Duration, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return milliseconds(sorted[min(max(rank, 0), len(sorted)-1)])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// perOne returns the share of one of many, in ms.
func perOne(d time.Duration, count int) float64 { return milliseconds(d) / float64(count) }
