// Package report is what a benchmark or a series of faults found out, for people, for
// programs and for pages. A benchmark's are tables of figures, each with what it is compared
// with and the bar it has to reach.
package report

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
