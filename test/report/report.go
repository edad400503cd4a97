package report

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Report is what a run found out.
type Report struct {
	Name string `json:"name"`
	// Measured is when the run ended, Elapsed how long it took.
	Measured string  `json:"measured"`
	Elapsed  string  `json:"elapsed"`
	Machine  Machine `json:"machine"`
	// Revision is what was measured.
	Revision string `json:"revision"`
	// Settings are what the run was asked for.
	Settings map[string]string `json:"settings,omitempty"`
	Tables   []Table           `json:"tables"`
	// Good says that every figure with a bar reached it.
	Good bool `json:"ok"`

	begin time.Time
}

// Table is a group of figures.
type Table struct {
	Title   string   `json:"title"`
	Notes   []string `json:"notes,omitempty"`
	Figures []Figure `json:"figures"`
}

// New begins a report.
func New(name string) *Report {
	return &Report{Name: name, Machine: thisMachine(), Revision: revision(), Good: true, begin: time.Now()}
}

// Note adds a sentence on how the table was measured.
func (t *Table) Note(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

// Add adds figures.
func (t *Table) Add(figures ...Figure) { t.Figures = append(t.Figures, figures...) }

// Add adds a table.
func (r *Report) Add(table Table) {
	r.Tables = append(r.Tables, table)
	for _, figure := range table.Figures {
		r.Good = r.Good && figure.Verdict != Short
	}
	r.Measured, r.Elapsed = time.Now().UTC().Format(time.RFC3339), time.Since(r.begin).Round(time.Second).String()
}

// Print writes a table for people, one line for each figure.
func (t *Table) Print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n", t.Title)
	for _, note := range t.Notes {
		fmt.Fprintln(out, "#", note)
	}
	t.grid().Print(out)
}

// Write writes the report as JSON.
func (r *Report) Write(path string) error { return Save(path, r) }

// Read reads a report that Write wrote.
func Read(path string) (*Report, error) { return Load[Report](path) }

// Markdown writes the report for a page.
func (r *Report) Markdown(out io.Writer) {
	fmt.Fprintf(out, "Measured %s in %s, revision %s: %s.\n", r.Measured, r.Elapsed, r.Revision, r.Machine)
	for _, table := range r.Tables {
		fmt.Fprintf(out, "\n### %s\n\n", table.Title)
		for _, note := range table.Notes {
			fmt.Fprintf(out, "- %s\n", note)
		}
		if len(table.Notes) > 0 {
			fmt.Fprintln(out)
		}
		table.grid().Markdown(out)
	}
}

func (t *Table) grid() Grid {
	grid := Grid{Heading: []string{"name", "value", "baseline", "ratio", "bar", "verdict"}}
	for _, figure := range t.Figures {
		grid.Rows = append(grid.Rows, figure.cells())
	}
	return grid
}

func (f Figure) cells() []string {
	cells := []string{f.Name, number(f.Value, f.Unit), "-", "-", "-", cmp.Or(f.Verdict, "-")}
	if f.Baseline != nil {
		cells[2] = number(*f.Baseline, f.Unit)
	}
	if f.Ratio != nil {
		cells[3] = fmt.Sprintf("%.2f", *f.Ratio)
	}
	if f.Bar != nil {
		cells[4] = f.Bar.String()
	}
	return cells
}

// String returns a bar as ≤ 3× or ≤ 300: of the ratio, or of the value in its unit.
func (b Bar) String() string {
	sign, times := "≤", ""
	if b.AtLeast {
		sign = "≥"
	}
	if b.OfRatio {
		times = "×"
	}
	return fmt.Sprintf("%s %g%s", sign, b.Limit, times)
}

// number keeps about three figures, and whole counts whole.
func number(value float64, unit string) string {
	format := "%.2f"
	switch magnitude := max(value, -value); {
	case value == float64(int64(value)):
		format = "%.0f"
	case magnitude >= 100:
		format = "%.0f"
	case magnitude >= 10:
		format = "%.1f"
	case magnitude < 1:
		format = "%.3f"
	}
	return strings.TrimSpace(fmt.Sprintf(format, value) + " " + unit)
}

// Save writes as JSON what a run found out.
func Save(path string, what any) error {
	content, err := json.MarshalIndent(what, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o600)
}

// Load reads what Save wrote.
func Load[T any](path string) (*T, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	into := new(T)
	if err := json.Unmarshal(content, into); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return into, nil
}

// Machine is what a run was made on.
type Machine struct {
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// String returns it for a sentence.
func (m Machine) String() string {
	return fmt.Sprintf("%d cores, %s, Linux %s, %s", m.Cores, m.Memory, m.Kernel, m.Go)
}

func thisMachine() Machine {
	machine := Machine{Cores: runtime.NumCPU(), Memory: "?", Kernel: "?", Go: runtime.Version()}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		machine.Kernel = strings.TrimSpace(string(release))
	}
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return machine
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &kib); n == 1 {
			machine.Memory = fmt.Sprintf("%d GiB", (kib+1<<19)>>20)
		}
	}
	return machine
}

// revision asks git for the commit; "-dirty" says that there is more than that.
func revision() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
