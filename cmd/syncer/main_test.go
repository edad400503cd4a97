package main

import (
	"errors"
	"testing"

	"github.com/muster-fleet/muster/internal/program"
)

func TestVersion(t *testing.T) {
	if err := run(t.Context(), []string{"--version"}); !errors.Is(err, program.ErrAnswered) {
		t.Error(err)
	}
}

// A former command such as `syncer audit` must not start a second syncer.
func TestArguments(t *testing.T) {
	if err := run(t.Context(), []string{"audit"}); err == nil || errors.Is(err, program.ErrAnswered) {
		t.Errorf("the error is %v", err)
	}
}
