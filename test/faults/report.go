package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// seconds is a length of time as JSON and tables hold it.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) {
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

// report is what a call of the program found out.
type report struct {
	Measured string    `json:"measured"`
	Seed     uint64    `json:"seed"`
	Elapsed  string    `json:"elapsed"`
	Good     bool      `json:"ok"`
	Runs     []*record `json:"runs"`
}

func readReport(path string) (*report, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func (r *report) write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o600)
}

var heading = []string{"fault", "runs", "converged", "median", "longest", "lost", "orphaned", "wrongly failed", "failed closed"}

// rows sums up the runs of each fault, in the order of the faults.
func (r *report) rows() [][]string {
	var rows [][]string
	for _, f := range faults {
		var runs, converged, lost, orphaned, wrong, closed int
		var took []seconds
		for _, rec := range r.Runs {
			if rec.Fault != f.name {
				continue
			}
			runs++
			lost, orphaned, wrong, closed = lost+len(rec.Lost), orphaned+len(rec.Orphaned), wrong+len(rec.Wrong), closed+int(rec.FailedClosed)
			if rec.Converged {
				converged++
				took = append(took, rec.Took)
			}
		}
		if runs == 0 {
			continue
		}
		median, longest := "-", "-"
		if len(took) > 0 {
			slices.Sort(took)
			median, longest = middle(took).String(), took[len(took)-1].String()
		}
		rows = append(rows, []string{f.name, fmt.Sprint(runs), fmt.Sprint(converged), median, longest,
			fmt.Sprint(lost), fmt.Sprint(orphaned), fmt.Sprint(wrong), fmt.Sprint(closed)})
	}
	return rows
}

func middle(sorted []seconds) seconds { return sorted[(len(sorted)-1)/2] }

// notes are what the table has no column for.
func (r *report) notes() []string {
	var notes []string
	var takeOver []seconds
	var requests, admissions int64
	for _, rec := range r.Runs {
		requests, admissions = requests+rec.Requests, admissions+rec.Admissions
		if rec.TakeOver > 0 {
			takeOver = append(takeOver, rec.TakeOver)
		}
	}
	if len(takeOver) > 0 {
		slices.Sort(takeOver)
		notes = append(notes, fmt.Sprintf("From SIGTERM to the first write of the standby: median %s, longest %s.", middle(takeOver), takeOver[len(takeOver)-1]))
	}
	return append(notes, fmt.Sprintf("%d requests of people, %d of them admissions by Muster's webhooks; seed %d; %s in all.", requests, admissions, r.Seed, r.Elapsed))
}

func (r *report) print(out io.Writer, markdown bool) {
	rows := append([][]string{heading}, r.rows()...)
	if markdown {
		for i, row := range rows {
			fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(out, "|%s\n", strings.Repeat("---|", len(row)))
			}
		}
		fmt.Fprintln(out)
	} else {
		printAligned(out, rows)
	}
	for _, note := range r.notes() {
		fmt.Fprintln(out, note)
	}
}

func printAligned(out io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(out, "%-*s", widths[i], cell)
			} else {
				fmt.Fprintf(out, "  %*s", widths[i], cell)
			}
		}
		fmt.Fprintln(out)
	}
}
