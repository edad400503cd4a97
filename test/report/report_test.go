package report

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, .5: 50, .99: 99, 1: 100} {
		if got := Quantile(hundred, q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if got := Quantile([]time.Duration{7}, .99); got != 7 {
		t.Errorf("quantile of one value is %d", got)
	}
	if got := Quantile(nil, .5); got < time.Hour {
		t.Errorf("quantile of nothing is %s, which could reach a bar", got)
	}
}

func TestSlope(t *testing.T) {
	for name, test := range map[string]struct {
		points []Point
		want   float64
	}{
		"a line":            {[]Point{{500, 60}, {2000, 120}, {5000, 240}}, 0.04},
		"around a line":     {[]Point{{0, 1}, {1, 0}, {2, 3}, {3, 2}}, 0.6},
		"one size":          {[]Point{{500, 60}}, 0},
		"the same size":     {[]Point{{500, 60}, {500, 70}}, 0},
		"no measured point": {nil, 0},
	} {
		if got := Slope(test.points); got < test.want-1e-9 || got > test.want+1e-9 {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		figure Figure
		want   string
	}{
		"no bar":                  {Value("a", "ms", 1), ""},
		"at the limit":            {Value("a", "MiB", 300).AtMost(300), OK},
		"over the limit":          {Value("a", "MiB", 300.1).AtMost(300), Short},
		"ratio reached":           {Value("a", "1/s", 70).Against(100).RatioAtLeast(.7), OK},
		"ratio missed":            {Value("a", "1/s", 69).Against(100).RatioAtLeast(.7), Short},
		"ratio to nothing":        {Value("a", "1/s", 69).Against(0).RatioAtMost(3), Short},
		"ratio without baseline":  {Value("a", "ms", 1).RatioAtMost(3), Short},
		"ratio under upper limit": {Value("a", "ms", 29).Against(10).RatioAtMost(3), OK},
	} {
		if test.figure.Verdict != test.want {
			t.Errorf("%s: %q, want %q", name, test.figure.Verdict, test.want)
		}
	}
}

func TestPrint(t *testing.T) {
	table := Table{Title: "Import"}
	table.Note("%d clusters", 2000)
	table.Add(Value("throughput", "1/s", 212.5).Against(250).RatioAtLeast(.7), Value("GET", "", 0).AtMost(0), Value("p50", "ms", 4.567))
	var out strings.Builder
	table.Print(&out)
	want := `
Import
# 2000 clusters
name          value  baseline  ratio     bar  verdict
throughput  212 1/s   250 1/s   0.85  ≥ 0.7×       ok
GET               0         -      -     ≤ 0       ok
p50         4.57 ms         -      -       -        -
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestReportIsReadAsItWasWritten(t *testing.T) {
	report := New("import")
	report.Add(Table{Title: "one", Figures: []Figure{Value("a", "ms", 1).Against(2).RatioAtMost(3)}})
	report.Add(Table{Title: "two", Figures: []Figure{Value("b", "", 1).AtMost(0)}})
	if report.Good {
		t.Error("a report with a figure that is short is good")
	}
	path := filepath.Join(t.TempDir(), "below", "report.json")
	if err := report.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, got, cmpopts.IgnoreUnexported(Report{})); diff != "" {
		t.Error(diff)
	}
	var page strings.Builder
	got.Markdown(&page)
	if line := "| a | 1 ms | 2 ms | 0.50 | ≤ 3× | ok |"; !strings.Contains(page.String(), line) {
		t.Errorf("no line %q in\n%s", line, page.String())
	}
}
