package main

import (
	"os"
	"testing"
	"time"
)

func TestParseCPU(t *testing.T) {
	got, err := parseCPU([]byte("42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0"))
	if err != nil || got != 2*time.Second {
		t.Errorf("got %s (%v)", got, err)
	}
	if _, err := cpuOf(os.Getpid()); err != nil {
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
