package usage

import (
	"os"
	"testing"
)

func TestParseMemory(t *testing.T) {
	got, err := parseMemory("Name:\tsyncer\nVmPeak:\t  900000 kB\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\n")
	if err != nil || got != (Memory{Now: 100, Peak: 200}) {
		t.Errorf("got %v (%v)", got, err)
	}
	if _, err := parseMemory("Name:\tzombie\n"); err == nil {
		t.Error("a process without memory is not noticed")
	}
	if _, err := MemoryOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}
