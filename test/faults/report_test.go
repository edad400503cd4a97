package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-fleet/muster/test/report"
)

func TestReport(t *testing.T) {
	in := func(length float64) seconds { return seconds(length * float64(time.Second)) }
	r := &result{Measured: "today", Seed: 7, Elapsed: "1m0s", Runs: []*record{
		{Fault: "watches-cut", Seed: 7, Converged: true, Took: in(3), Requests: 10, Admissions: 4},
		{Fault: "syncer-terminated", Seed: 7, Converged: true, Took: in(2.04), TakeOver: in(1.5), Requests: 10, Admissions: 4},
		{Fault: "watches-cut", Seed: 8, Converged: true, Took: in(1), FailedClosed: 2},
		{Fault: "watches-cut", Seed: 9, Lost: []string{"Fleet Cluster a/b"}, Orphaned: []string{"ClusterGroup a/c", "ClusterGroup a/d"}, Wrong: []string{"creating"}},
		{Fault: "watches-cut", Seed: 10, Converged: true, Took: in(9)},
	}}
	path := filepath.Join(t.TempDir(), "sub", "faults.json")
	if err := report.Save(path, r); err != nil {
		t.Fatal(err)
	}
	read, err := report.Load[result](path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, read); diff != "" {
		t.Errorf("what is read is not what was written:\n%s", diff)
	}
	var plain, markdown strings.Builder
	read.print(&plain, false)
	read.print(&markdown, true)
	if diff := cmp.Diff(`fault              runs  converged  median  longest  lost  orphaned  wrongly failed  failed closed
syncer-terminated     1          1   2.0 s    2.0 s     0         0               0              0
watches-cut           4          3   3.0 s    9.0 s     1         2               1              2
From SIGTERM to the first write of the standby: median 1.5 s, longest 1.5 s.
20 requests of people, 8 of them admissions by Muster's webhooks; seed 7; 1m0s in all.
`, plain.String()); diff != "" {
		t.Errorf("the table differs:\n%s", diff)
	}
	if diff := cmp.Diff(`| fault | runs | converged | median | longest | lost | orphaned | wrongly failed | failed closed |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| syncer-terminated | 1 | 1 | 2.0 s | 2.0 s | 0 | 0 | 0 | 0 |
| watches-cut | 4 | 3 | 3.0 s | 9.0 s | 1 | 2 | 1 | 2 |

From SIGTERM to the first write of the standby: median 1.5 s, longest 1.5 s.
20 requests of people, 8 of them admissions by Muster's webhooks; seed 7; 1m0s in all.
`, markdown.String()); diff != "" {
		t.Errorf("the table in Markdown differs:\n%s", diff)
	}
	for i, want := range []bool{true, true, true, false, true} {
		if got := read.Runs[i].good(); got != want {
			t.Errorf("run %d is good: %v", i, got)
		}
	}
}
