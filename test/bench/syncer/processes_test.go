package main

import (
	"os"
	"testing"
	"time"
)

func TestParseMemory(t *testing.T) {
	got, err := parseMemory("Name:\tsyncer\nVmPeak:\t  900000 kB\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\n")
	if err != nil || got != (memory{now: 100, peak: 200}) {
		t.Errorf("got %v (%v)", got, err)
	}
	if _, err := parseMemory("Name:\tzombie\n"); err == nil {
		t.Error("a process without memory is not noticed")
	}
}

func TestParseCPU(t *testing.T) {
	got, err := parseCPU([]byte("42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0"))
	if err != nil || got != 2*time.Second {
		t.Errorf("got %s (%v)", got, err)
	}
	if _, err := cpuOf(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, err := memoryOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  100 20 30 9999 888 1 2 47 0 0\ncpu0 1 2 3\n")
	if err != nil || got != 2*time.Second {
		t.Errorf("got %s (%v)", got, err)
	}
	if _, err := parseBusy("intr 1"); err == nil {
		t.Error("any line will do")
	}
}
