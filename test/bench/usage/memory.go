// Package usage reads from the kernel what processes use.
package usage

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is what a process holds, in MiB, and the most it has held since ResetPeak.
type Memory struct{ Now, Peak float64 }

// MemoryOf returns the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	return parseMemory(string(content))
}

func parseMemory(status string) (Memory, error) {
	var result Memory
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
			result.Now = kib / 1024
		case "VmHWM:":
			result.Peak = kib / 1024
		}
	}
	if result.Now == 0 || result.Peak == 0 {
		return result, fmt.Errorf("no VmRSS and VmHWM in %q", status)
	}
	return result, nil
}

// ResetPeak lets the kernel forget what a process held at most.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o600)
}
