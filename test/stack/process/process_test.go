package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestADeadProcessEndsTheWaitAtOnce(t *testing.T) {
	p := New(Spec{
		Name: "sh", Path: "/bin/sh", Args: []string{"-c", "echo no memory; exit 3"}, Env: []string{},
		Ready: func(context.Context) error { return errors.New("not ready") }, Timeout: time.Minute,
	}, filepath.Join(t.TempDir(), "log"))
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err := p.Ready(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("got %v", err)
	}
	if time.Since(begin) > 10*time.Second {
		t.Error("it waited on")
	}
}

func TestAProcessIsKnownByItsProgram(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]bool{"": true, program: true, link: true, "/another": false} {
		if got := Runs(os.Getpid(), program); got != want {
			t.Errorf("%q runs: %t", program, got)
		}
	}
}
