package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
)

// pid returns the process id of a process of the stack.
func pid(env *stack.Stack, name string) (int, error) {
	for _, status := range env.Processes() {
		if status.Name == name && status.Running {
			return status.PID, nil
		}
	}
	return 0, fmt.Errorf("%s is not running", name)
}

// cpuOf returns the processor time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(content)
}

// ticksPerSecond is USER_HZ, on every architecture that Go runs on.
const ticksPerSecond = 100

// parseCPU reads utime and stime; the name before them may hold blanks and parentheses.
func parseCPU(stat []byte) (time.Duration, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("not a stat line: %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// processorTime is what the processors did until now: altogether, and for the benchmark and all the
// processes it started.
type processorTime struct{ busy, ours time.Duration }

// processorsUntilNow reads /proc. Processes that have ended count through their parent,
// which is this one.
func processorsUntilNow(env *stack.Stack) (processorTime, error) {
	var t processorTime
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	if t.busy, err = parseBusy(string(content)); err != nil {
		return t, err
	}
	own := syscall.Rusage{}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		if err := syscall.Getrusage(who, &own); err != nil {
			return t, err
		}
		t.ours += time.Duration(own.Utime.Nano() + own.Stime.Nano())
	}
	for _, status := range env.Processes() {
		if !status.Running {
			continue
		}
		// One that has just ended counts as a child.
		if used, err := cpuOf(status.PID); err == nil {
			t.ours += used
		}
	}
	return t, nil
}

// parseBusy adds up the first line of /proc/stat but for idle and waiting for a disk. What
// a hypervisor gave to others counts: we did not have it.
func parseBusy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("not the line of all processors: %q", line)
	}
	var ticks int64
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		if idle := i == 3 || i == 4; !idle {
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// part measures tables that belong together, on one stack.
type part struct {
	// tables are what -only calls them.
	tables  []string
	measure func(context.Context, options) ([]report.Table, error)
}

var parts = []part{
	{[]string{"throughput", "latency"}, measureThroughput},
	{[]string{"growth", "look", "start", "fanout"}, measureImported},
	{[]string{"namespace"}, measureNamespace},
	{[]string{"charts"}, measureCharts},
}

func tableNames() []string {
	var names []string
	for _, part := range parts {
		names = append(names, part.tables...)
	}
	return names
}

// wants tells whether a table was asked for.
func (o options) wants(table string) bool {
	return o.only == "" || slices.Contains(strings.Split(o.only, ","), table)
}

// parts are what is to be measured.
func (o options) parts() ([]part, error) {
	if o.only != "" {
		for _, name := range strings.Split(o.only, ",") {
			if !slices.Contains(tableNames(), name) {
				return nil, fmt.Errorf("-only: there is no %q; there are %s", name, strings.Join(tableNames(), ", "))
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.ContainsFunc(p.tables, o.wants) }), nil
}
