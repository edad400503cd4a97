// Package usage reads from the kernel what processes use.
package usage

import (
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"
)

// Memory is what a process holds, in MiB, and the most it has held since ResetPeak.
type Memory struct{ Now, Peak float64 }

// MemoryOf returns the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return Memory{}, err
	}
	status, err := process.NewStatus()
	if err == nil && status.VmRSS == 0 {
		err = fmt.Errorf("process %d holds no memory: it has ended", pid)
	}
	return Memory{Now: float64(status.VmRSS) / (1 << 20), Peak: float64(status.VmHWM) / (1 << 20)}, err
}

// ResetPeak lets the kernel forget what a process held at most.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o600)
}

// ProcessorTime returns the processor time that a process has used.
func ProcessorTime(pid int) (time.Duration, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// Busy returns the processor time that all processes have used, including time that a hypervisor gave to
// other machines.
func Busy() (time.Duration, error) {
	kernel, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stat, err := kernel.Stat()
	all := stat.CPUTotal
	return time.Duration((all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ + all.Steal) * float64(time.Second)), err
}
