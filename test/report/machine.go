package report

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

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
