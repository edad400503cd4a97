package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

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

// memory is what a process holds, in MiB, and the most it has held since resetPeak.
type memory struct{ now, peak float64 }

func memoryOf(pid int) (memory, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	return parseMemory(string(content))
}

func parseMemory(status string) (memory, error) {
	var result memory
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "VmRSS:":
			result.now = kib / 1024
		case "VmHWM:":
			result.peak = kib / 1024
		}
	}
	if result.now == 0 || result.peak == 0 {
		return result, fmt.Errorf("no VmRSS and VmHWM in %q", status)
	}
	return result, nil
}

// resetPeak lets the kernel forget what a process held at most.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o600)
}

// cpuOf returns the processor time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(content)
}

// parseCPU reads utime and stime; the name before them may hold blanks and parentheses.
func parseCPU(stat []byte) (time.Duration, error) {
	const ticksPerSecond = 100 // USER_HZ, on every architecture that Go runs on.
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
