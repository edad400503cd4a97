package main

import (
	"errors"
	"testing"

	"github.com/muster-fleet/muster/internal/program"
)

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"render", "--version"}, {"audit", "--version"}} {
		if err := run(t.Context(), args); !errors.Is(err, program.ErrAnswered) {
			t.Errorf("syncer %q: %v", args, err)
		}
	}
}
