// Package usage reads the resource usage of processes from the kernel.
package usage

import (
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"
)

// Memory is the memory of a process, in MiB: now, and at most since ResetPeak.
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

// ResetPeak resets the peak memory of a process in the kernel.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o600)
}

// ProcessorTime returns the processor time that a process and its children have used.
func ProcessorTime(pid int) (time.Duration, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	if err != nil {
		return 0, err
	}
	seconds := stat.CPUTime() + procfs.ProcStat{UTime: uint(stat.CUTime), STime: uint(stat.CSTime)}.CPUTime()
	all, err := procfs.AllProcs()
	for _, other := range all {
		if its, err := other.Stat(); err == nil && its.PPID == pid { // Other processes may have ended.
			seconds += its.CPUTime()
		}
	}
	return time.Duration(seconds * float64(time.Second)), err
}

// Read returns how many bytes a process has read, from files, pipes and connections.
func Read(pid int) (float64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	its, err := process.IO()
	return float64(its.RChar), err
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
