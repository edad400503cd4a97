package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/muster-fleet/muster/test/report"
)

// seconds is a length of time as JSON and tables hold it.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) { //nolint:unparam // json.Marshaler's
	return []byte(fmt.Sprintf("%.3f", time.Duration(s).Seconds())), nil
}

func (s *seconds) UnmarshalJSON(text []byte) error {
	var value float64
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	*s = seconds(value * float64(time.Second))
	return nil
}

func (s seconds) String() string { return fmt.Sprintf("%.1f s", time.Duration(s).Seconds()) }

// record is what came of one run.
type record struct {
	Fault string `json:"fault"`
	Seed  uint64 `json:"seed"`
	// Converged and Took say whether Muster came to rest, and how long it took.
	Converged bool    `json:"converged"`
	Took      seconds `json:"took"`
	// TakeOver is the time from SIGTERM to the first write of the standby.
	TakeOver seconds  `json:"takeOver,omitempty"`
	Lost     []string `json:"lost,omitempty"`
	Orphaned []string `json:"orphaned,omitempty"`
	Wrong    []string `json:"wronglyFailed,omitempty"`

	Requests     int64 `json:"requests"`
	Admissions   int64 `json:"admissions"`
	FailedClosed int64 `json:"failedClosed"`
	Unstamped    int64 `json:"unstamped"`
	Retried      int64 `json:"retried"`
	// Restarts are starts of Muster's processes by the kubelet.
	Restarts int `json:"restarts"`
	// Injected is how often the proxy let something go wrong.
	Injected int    `json:"injected,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

func (r *record) good() bool {
	return r.Converged && r.Problem == "" && len(r.Lost)+len(r.Orphaned)+len(r.Wrong) == 0
}

func (r *record) String() string {
	text := fmt.Sprintf("%-20s seed %d: ", r.Fault, r.Seed)
	if r.Converged {
		text += "converged after " + r.Took.String()
	} else {
		text += "did not converge"
	}
	if r.TakeOver > 0 {
		text += ", standby wrote after " + r.TakeOver.String()
	}
	text += fmt.Sprintf("; %d requests", r.Requests)
	for _, count := range []struct {
		number int64
		what   string
	}{
		{int64(r.Injected), "injected"}, {r.Retried, "retried"}, {r.FailedClosed, "failed closed"}, {r.Unstamped, "unstamped"},
		{int64(r.Restarts), "restarts"}, {int64(len(r.Lost)), "LOST"}, {int64(len(r.Orphaned)), "ORPHANED"}, {int64(len(r.Wrong)), "WRONGLY FAILED"},
	} {
		if count.number > 0 {
			text += fmt.Sprintf(", %d %s", count.number, count.what)
		}
	}
	return text
}

// result is what a call of the program found out.
type result struct {
	Measured string    `json:"measured"`
	Seed     uint64    `json:"seed"`
	Elapsed  string    `json:"elapsed"`
	Good     bool      `json:"ok"`
	Runs     []*record `json:"runs"`
}

// grid sums up the runs of each fault, in the order of the faults.
func (r *result) grid() report.Grid {
	grid := report.Grid{Heading: []string{"fault", "runs", "converged", "median", "longest", "lost", "orphaned", "wrongly failed", "failed closed"}}
	for _, f := range faults {
		var runs, lost, orphaned, wrong, closed int
		var took []time.Duration
		for _, rec := range r.Runs {
			if rec.Fault != f.name {
				continue
			}
			runs++
			lost, orphaned, wrong, closed = lost+len(rec.Lost), orphaned+len(rec.Orphaned), wrong+len(rec.Wrong), closed+int(rec.FailedClosed)
			if rec.Converged {
				took = append(took, time.Duration(rec.Took))
			}
		}
		if runs == 0 {
			continue
		}
		median, longest := "-", "-"
		if len(took) > 0 {
			median, longest = middle(took).String(), seconds(slices.Max(took)).String()
		}
		grid.Rows = append(grid.Rows, []string{f.name, fmt.Sprint(runs), fmt.Sprint(len(took)), median, longest,
			fmt.Sprint(lost), fmt.Sprint(orphaned), fmt.Sprint(wrong), fmt.Sprint(closed)})
	}
	return grid
}

func middle(lengths []time.Duration) seconds { return seconds(report.Quantile(lengths, .5)) }

// notes are what the table has no column for.
func (r *result) notes() []string {
	var notes []string
	var takeOver []time.Duration
	var requests, admissions int64
	for _, rec := range r.Runs {
		requests, admissions = requests+rec.Requests, admissions+rec.Admissions
		if rec.TakeOver > 0 {
			takeOver = append(takeOver, time.Duration(rec.TakeOver))
		}
	}
	if len(takeOver) > 0 {
		notes = append(notes, fmt.Sprintf("From SIGTERM to the first write of the standby: median %s, longest %s.", middle(takeOver), seconds(slices.Max(takeOver))))
	}
	return append(notes, fmt.Sprintf("%d requests of people, %d of them admissions by Muster's webhooks; seed %d; %s in all.", requests, admissions, r.Seed, r.Elapsed))
}

func (r *result) print(out io.Writer, markdown bool) {
	if markdown {
		r.grid().Markdown(out)
		fmt.Fprintln(out)
	} else {
		r.grid().Print(out)
	}
	for _, note := range r.notes() {
		fmt.Fprintln(out, note)
	}
}
